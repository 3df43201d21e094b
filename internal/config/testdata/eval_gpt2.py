# the sizes of gpt2, evaluated as OpenAI trained it
batch_size = 8
eval_iters = 500 # a steadier estimate
eval_only = True
wandb_log = False
init_from = 'gpt2'
