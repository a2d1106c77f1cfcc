"""The Object Detection API's configuration format: its fields, its text, and how both meet the configuration tree.

    fields       names, types and defaults of all messages (fields.tsv)
    text_format  text -> a tree of messages
    rules        the three things that can become of a field: mapped, ignored, refused
    mapping*     one rule for each field
    reader       messages -> the plain tree of `TrainEvalConfig` and the three lists
    writer       `TrainEvalConfig` -> text

`detloom.schemas.pipeline_config` is the way in.
"""
