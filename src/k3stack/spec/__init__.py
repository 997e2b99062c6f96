"""What K3 is, read from config.json: layers, tensors, parameters, bytes."""

from k3stack.spec.dtypes import DType
from k3stack.spec.model import Attention, KdaSpec, LayerSpec, MlaSpec, ModelSpec, MoeSpec, VisionSpec
from k3stack.spec.schemes import Encoding, Scheme
from k3stack.spec.sizes import ComponentSize, Shard, Sizes, active_parameters, measure
from k3stack.spec.tensors import Component, Family, TensorSpec, families, tensors

__all__ = [
    "Attention",
    "Component",
    "ComponentSize",
    "DType",
    "Encoding",
    "Family",
    "KdaSpec",
    "LayerSpec",
    "MlaSpec",
    "ModelSpec",
    "MoeSpec",
    "Scheme",
    "Shard",
    "Sizes",
    "TensorSpec",
    "VisionSpec",
    "active_parameters",
    "families",
    "measure",
    "tensors",
]
