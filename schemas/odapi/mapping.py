"""One rule for each field of the messages that the configuration tree has counterparts of; the others are refused."""

from detloom.schemas.odapi.mapping_center_net import CENTER_NET
from detloom.schemas.odapi.mapping_model import MODEL
from detloom.schemas.odapi.mapping_network import NETWORK
from detloom.schemas.odapi.mapping_steps import STEPS
from detloom.schemas.odapi.mapping_train import TRAIN
from detloom.schemas.odapi.rules import Structure

STRUCTURES: dict[str, Structure] = {**TRAIN, **MODEL, **CENTER_NET, **NETWORK, **STEPS}
