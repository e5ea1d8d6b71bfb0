// The precompiled torch/torch.h needs one source file to belong to.
