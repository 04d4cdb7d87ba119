"""The decision what the model sees: outline, policy and budget in, plan out."""
