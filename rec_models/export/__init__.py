"""Export of a loaded model: ONNX graphs, a package that scores without pslib, and other formats."""
