"""Time the Object Detection API's own conversion of a VOC data set; runs in the peer's environment (build_odapi.sh).

    python odapi_pascal.py DATA_FOLDER LIST_NAME OUTPUT_FILE

Prints one line of JSON. The loop does the same as the peer's script with its functions; `folder` is emptied, because
otherwise the peer searches for the images in a folder of that name.
"""

import json
import os
import sys
import time

import tensorflow.compat.v1 as tf
from lxml import etree
from object_detection.dataset_tools import create_pascal_tf_record
from object_detection.utils import dataset_util

CLASS_IDS = {"Platelets": 1, "RBC": 2, "WBC": 3}


def main():
    folder, list_name, output = sys.argv[1:4]
    started = time.monotonic()
    names = dataset_util.read_examples_list(os.path.join(folder, "ImageSets/Main", list_name + ".txt"))
    with tf.python_io.TFRecordWriter(output) as writer:
        for name in names:
            with tf.gfile.GFile(os.path.join(folder, "Annotations", name + ".xml"), "r") as file:
                text = file.read()
            data = dataset_util.recursive_parse_xml_to_dict(etree.fromstring(text))["annotation"]
            data["folder"] = ""
            example = create_pascal_tf_record.dict_to_tf_example(data, folder, CLASS_IDS, False)
            writer.write(example.SerializeToString())
    print(json.dumps({"seconds": time.monotonic() - started, "num_records": len(names)}))


if __name__ == "__main__":
    main()
