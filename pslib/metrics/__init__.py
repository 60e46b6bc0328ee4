"""What a model is judged by: AUC and log loss that merge exactly, GAUC, ranking, paired differences."""
