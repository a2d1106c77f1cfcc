"""The faults and stages of the reliability matrix, and why a cell has no test."""

FAULTS = {
    "kill": "SIGKILL ends the process; it cannot clean up.",
    "full disk": "A write fails because the disk is full.",
    "read-only": "A write fails because the file system or the folder is read-only.",
    "torn file": "A file that an earlier step wrote is truncated or damaged.",
    "lost lease": "A process loses its lock while it works, because it was suspended or the lock was removed.",
    "clock jump": "The system clock is moved back or forward.",
    "concurrent runs": "Two processes use the same output at the same time.",
    "store failure": "An object store responds with an error or not at all, cuts a response, or is late.",
    "hostile input": "The input was made to crash the program, to read or write other files, or to run code.",
}
STAGES = {
    "ingest": "DetectionExampleGen, `detloom ingest`: annotations and images become shards.",
    "validate": "DatasetValidator, `detloom validate`: shards become a report.",
    "train": "Trainer, `detloom train`: shards become checkpoints, logs and the best weights.",
    "evaluate": "DetectionEvaluator, `detloom evaluate`: a model and shards become metrics, a report and a decision.",
    "export": "The end of the Trainer, `detloom export`: weights become SavedModel, TensorFlow Lite and ONNX.",
    "push": "Pusher, `detloom push`: a model becomes the version that serves.",
    "rollback": "`detloom rollback`: an earlier version serves again.",
    "serve": "`detloom serve`: a version answers requests.",
    "metadata": "ML Metadata of a workspace, records of finished training runs, `detloom lineage`.",
}
# A cell without a test has a reason here; a cell with a test has none.
REASONS = {
    ("lost lease", "export"): "The export holds no lock: it writes a new folder, which one rename publishes.",
    (
        "store failure",
        "train",
    ): "Training reads a copy of examples in a bucket, and writes to a local folder.",
    ("store failure", "evaluate"): "The command reads copies, as `detloom validate` does, and uploads the same way.",
    ("store failure", "export"): "The export writes a folder on this machine; a push uploads it.",
    (
        "store failure",
        "serve",
    ): "The server loads a copy of a version in a bucket, and reads nothing later.",
    ("store failure", "metadata"): "ML Metadata are in a file on this machine.",
    ("lost lease", "serve"): "The server holds no lock: it only reads one version, and writes no file.",
}
