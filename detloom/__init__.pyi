__version__: str

from detloom.pipelines.compile.compile_pipeline import compile_pipeline as compile_pipeline
from detloom.pipelines.python_api import LoadedDetector as LoadedDetector
from detloom.pipelines.python_api import evaluate as evaluate
from detloom.pipelines.python_api import load_detector as load_detector
from detloom.pipelines.python_api import model_input as model_input
from detloom.pipelines.python_api import run as run
from detloom.pipelines.python_api import train as train
from detloom.pipelines.python_api import trainer_config as trainer_config
from detloom.schemas.errors import InputError as InputError
from detloom.trainer_module.inference.prediction import Prediction as Prediction
