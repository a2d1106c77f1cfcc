"""The Object Detection API's configuration format and its mapping to the configuration tree.

    fields       names, types and defaults of all messages (fields.tsv)
    text_format  text -> a tree of messages
    rules        the three kinds of rules: mapped, ignored, refused
    mapping*     the messages and fields whose names or values differ from those of the tree, or that are not supported
    reader       messages -> the plain tree of `TrainEvalConfig` and the three lists of fields
    writer       `TrainEvalConfig` -> text

`detloom.schemas.odapi.pipeline_config` is the way in.
"""
