from detloom.pipelines.kfp_components.build import KfpComponents as KfpComponents
from detloom.pipelines.kfp_components.build import components_of as components_of
from detloom.pipelines.kfp_components.steps import evaluate as evaluate
from detloom.pipelines.kfp_components.steps import ingest as ingest
from detloom.pipelines.kfp_components.steps import push as push
from detloom.pipelines.kfp_components.steps import train as train
from detloom.pipelines.kfp_components.steps import validate as validate
