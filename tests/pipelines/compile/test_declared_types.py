from detloom.pipelines.compile.declared_types import declare_final_status, name_system_types


def test_types_that_the_backends_show_are_named_by_title_and_all_others_keep_their_schema():
    page, ours = (
        {"instanceSchema": "title: system.HTML\ntype: object\n"},
        {"instanceSchema": "title: detloom.Rejects\n"},
    )
    outputs = {"page": {"artifactType": page}, "rejects": {"artifactType": ours}}
    spec = name_system_types({"components": {"A": {"outputDefinitions": {"artifacts": outputs}}, "B": {}}})
    named = spec["components"]["A"]["outputDefinitions"]["artifacts"]
    assert named["page"]["artifactType"] == {"schemaTitle": "system.HTML", "schemaVersion": "0.0.1"}
    assert named["rejects"]["artifactType"] == ours


def test_how_the_run_ended_is_declared_as_a_status_and_not_as_a_text():
    task = {
        "componentRef": {"name": "A"},
        "inputs": {
            "parameters": {
                "status": {"taskFinalStatus": {"producerTask": "tfx-dag"}},
                "name": {"runtimeValue": {"constant": "x"}},
            }
        },
    }
    declared = {"status": {"parameterType": "STRING"}, "name": {"parameterType": "STRING"}}
    spec = {
        "root": {"dag": {"tasks": {"A": task}}},
        "components": {"A": {"inputDefinitions": {"parameters": declared}}},
    }
    edited = declare_final_status(spec)["components"]["A"]["inputDefinitions"]["parameters"]
    assert edited == {"status": {"parameterType": "TASK_FINAL_STATUS"}, "name": {"parameterType": "STRING"}}
    assert declared["status"] == {"parameterType": "STRING"}
