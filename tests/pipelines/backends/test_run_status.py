from detloom.pipelines.backends.run_status import PlannedTask, TaskStatus, fill_in, planned_tasks


def dag(**tasks):
    """tasks: name -> (component, names that it depends on)"""
    return {
        "dag": {
            "tasks": {
                name: {"componentRef": {"name": component}, "dependentTasks": list(after)}
                for name, (component, after) in tasks.items()
            }
        }
    }


def test_tasks_come_after_those_that_they_depend_on():
    spec = {"root": dag(A=("c", ["B"]), B=("c", ["C"]), C=("c", [])), "components": {"c": {"executorLabel": "e"}}}
    assert [task.name for task in planned_tasks(spec)] == ["C", "B", "A"]


def test_tasks_of_inner_pipelines_stand_where_their_group_stands():
    components = {"c": {"executorLabel": "e"}, "g": dag(X=("c", []), Y=("c", ["X"])), "h": dag(Z=("c", []))}
    spec = {"root": dag(First=("c", []), Group=("g", ["First"]), Zlast=("h", ["Group"])), "components": components}
    assert planned_tasks(spec) == (
        PlannedTask(name="First"),
        PlannedTask(name="X", groups=("Group",)),
        PlannedTask(name="Y", groups=("Group",)),
        PlannedTask(name="Z", groups=("Zlast",)),
    )


def test_a_spec_that_is_wrong_ends_the_search():
    circle = {"root": dag(A=("c", ["B"]), B=("c", ["A"])), "components": {"c": {"executorLabel": "e"}}}
    assert [task.name for task in planned_tasks(circle)] == ["A", "B"]
    inside_itself = {"root": dag(G=("g", [])), "components": {"g": dag(G=("g", []))}}
    assert [task.name for task in planned_tasks(inside_itself)] == ["G"]
    assert planned_tasks({}) == ()


PLANNED = (PlannedTask(name="A"), PlannedTask(name="B", groups=("g",)))


def states(known, run):
    statuses = fill_in(PLANNED, {name: TaskStatus(name=name, state=state) for name, state in known.items()}, run)
    return [status.state for status in statuses]


def test_tasks_that_the_backend_does_not_tell_of_are_pending_while_the_run_goes_on():
    assert states({"A": "running"}, "running") == ["running", "pending"]


def test_tasks_of_a_group_whose_condition_was_false_are_skipped():
    assert states({"A": "succeeded", "g": "skipped"}, "running") == ["succeeded", "skipped"]


def test_tasks_that_were_never_reached_did_not_run():
    assert states({"A": "failed"}, "failed") == ["failed", "not run"]
    assert states({"A": "running", "g": "failed"}, "running") == ["running", "not run"]
