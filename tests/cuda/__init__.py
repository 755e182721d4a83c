"""Checks on a real GPU: ``make test-cuda``. They fail, and are not skipped, where there is none."""

NO_GPU = (
    "make test-cuda needs a GPU that PyTorch can use, and torch.cuda.is_available() is False here:"
    " name the Python of an environment with a CUDA build of PyTorch, as in"
    " make test-cuda CUDA_PYTHON=/path/to/bin/python"
)
