"""Evaluation metrics: AUC and log loss that merge exactly, GAUC, ranking metrics, paired differences."""
