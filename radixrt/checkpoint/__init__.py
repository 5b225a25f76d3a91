"""Model names into files, and files into facts. Torch-free; see README.md."""

from radixrt.checkpoint.checkpoint import Checkpoint, open_checkpoint
from radixrt.checkpoint.config import ARCHITECTURES, ModelConfig, RopeScaling
from radixrt.checkpoint.dummy import dummy_directory
from radixrt.checkpoint.encoder import EncoderConfig
from radixrt.checkpoint.gguf_file import GgufFile, GgufTensor, read_gguf
from radixrt.checkpoint.home import home
from radixrt.checkpoint.pooling import EmbeddingFacts, Pooling
from radixrt.checkpoint.registry import ModelEntry, list_models
from radixrt.checkpoint.resolve import resolve
from radixrt.checkpoint.vocabulary import Vocabulary

__all__ = [
    "ARCHITECTURES",
    "Checkpoint",
    "EmbeddingFacts",
    "EncoderConfig",
    "GgufFile",
    "GgufTensor",
    "ModelConfig",
    "ModelEntry",
    "Pooling",
    "RopeScaling",
    "Vocabulary",
    "dummy_directory",
    "home",
    "list_models",
    "open_checkpoint",
    "read_gguf",
    "resolve",
]
