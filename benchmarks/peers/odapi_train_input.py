"""Time the Object Detection API's training input on request; runs in the peer's environment (build_odapi.sh).

    python odapi_train_input.py LABEL_MAP RECORDS NAME=PIPELINE_CONFIG [NAME=PIPELINE_CONFIG ...]

Prints a line of JSON when it is ready, then one line per request: `NAME COUNT` returns the seconds of that many batches
of `inputs.train_input` with that configuration. RECORDS is a pattern.
"""

import sys

from google.protobuf import text_format
from object_detection import inputs
from object_detection.protos import pipeline_pb2
from timed_process import answer_requests


def build_iterator(path, label_map, records):
    with open(path) as file:
        config = text_format.Parse(file.read(), pipeline_pb2.TrainEvalPipelineConfig())
    reader = config.train_input_reader
    reader.label_map_path = label_map
    del reader.tf_record_input_reader.input_path[:]
    reader.tf_record_input_reader.input_path.append(records)
    return iter(inputs.train_input(config.train_config, reader, config.model))


def main():
    label_map, records, *cases = sys.argv[1:]
    iterators = {}
    for case in cases:
        name, path = case.split("=", 1)
        iterators[name] = build_iterator(path, label_map, records)
        next(iterators[name])
    answer_requests(lambda name: next(iterators[name]))


if __name__ == "__main__":
    main()
