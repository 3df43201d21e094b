package config

import "github.com/snugml/snug/internal/units"

// Commands says which commands read a setting.
type Commands uint8

const (
	Train Commands = 1 << iota
	Plan
	Doctor
	Sample
	Bench
)

// names of the commands, in the order of their bits.
var commandNames = []string{"train", "plan", "doctor", "sample", "bench"}

const (
	engine  = Train | Bench                 // settings of the training loop alone
	memory  = Train | Plan | Doctor | Bench // settings that change what a step takes
	anyRun  = memory | Sample
	sampler = Sample
)

// Config is one value for each row of Table. Fields carry the key's name in Go's spelling.
type Config struct {
	OutDir               string
	EvalInterval         int
	LogInterval          int
	EvalIters            int
	EvalOnly             bool
	AlwaysSaveCheckpoint bool
	InitFrom             string

	WandbLog     bool
	WandbProject string
	WandbRunName string

	Dataset                   string
	GradientAccumulationSteps int
	BatchSize                 int
	BlockSize                 int

	NLayer  int
	NHead   int
	NEmbd   int
	Dropout float64
	Bias    bool

	LearningRate float64
	MaxIters     int
	WeightDecay  float64
	Beta1        float64
	Beta2        float64
	GradClip     float64

	DecayLr      bool
	WarmupIters  int
	LrDecayIters int
	MinLr        float64

	Backend string
	Device  string
	DType   string
	Compile bool

	Start        string
	NumSamples   int
	MaxNewTokens int
	Temperature  float64
	TopK         int
	Seed         int

	VocabSize      int
	DataDir        string
	DataOrder      string
	Vram           units.Bytes
	MicroBatch     int
	Recompute      string
	LossChunk      int
	GradientDType  string
	Threads        int
	TensorboardLog bool

	set map[string]bool // keys that a file, a flag or a caller gave
}

// Setting is one row of Table: everything that is known of a key.
type Setting struct {
	Key      string
	Default  any // its type is the setting's type: int, float64, bool, string or units.Bytes
	Group    string
	Help     string
	Unit     string
	Commands Commands
	Min      float64  // the least value of a number
	Below    float64  // numbers stay under it; 0 is no bound
	Choices  []string // the values of a string; nil is any
	Sample   any      // sample.py's default, where it differs

	field func(*Config) any // where the value lives
}

// Table is every setting: nanoGPT's train.py (3adf61e) in its own order, names and defaults, then what
// sample.py adds, then snug's own. Flags, help, config files, JSON and errors are made from it.
var Table = []Setting{
	{Key: "out_dir", Default: "out", Group: "I/O", Help: "folder for checkpoints, metrics and curves", Commands: engine | Sample, field: func(c *Config) any { return &c.OutDir }},
	{Key: "eval_interval", Default: 2000, Group: "I/O", Unit: "iterations", Help: "how often the loss is estimated and a checkpoint written", Commands: engine | Plan | Doctor, Min: 1, field: func(c *Config) any { return &c.EvalInterval }},
	{Key: "log_interval", Default: 1, Group: "I/O", Unit: "iterations", Help: "how often a line is printed", Commands: engine, Min: 1, field: func(c *Config) any { return &c.LogInterval }},
	{Key: "eval_iters", Default: 200, Group: "I/O", Unit: "batches", Help: "batches per split in an estimate of the loss", Commands: engine | Plan | Doctor, Min: 1, field: func(c *Config) any { return &c.EvalIters }},
	{Key: "eval_only", Default: false, Group: "I/O", Help: "stop after the first estimate", Commands: engine | Plan | Doctor, field: func(c *Config) any { return &c.EvalOnly }},
	{Key: "always_save_checkpoint", Default: true, Group: "I/O", Help: "save after every estimate, not only after the best", Commands: engine, field: func(c *Config) any { return &c.AlwaysSaveCheckpoint }},
	{Key: "init_from", Default: "scratch", Group: "I/O", Help: "scratch, resume, gpt2 … gpt2-xl (sizes), or a file: model.safetensors, ckpt.pt", Commands: anyRun, Sample: "resume", field: func(c *Config) any { return &c.InitFrom }},

	{Key: "wandb_log", Default: false, Group: "logging", Help: "nanoGPT's Weights & Biases logging; snug train writes metrics.jsonl instead", Commands: engine, field: func(c *Config) any { return &c.WandbLog }},
	{Key: "wandb_project", Default: "owt", Group: "logging", Help: "project name of wandb_log", Commands: engine, field: func(c *Config) any { return &c.WandbProject }},
	{Key: "wandb_run_name", Default: "gpt2", Group: "logging", Help: "run name of wandb_log", Commands: engine, field: func(c *Config) any { return &c.WandbRunName }},

	{Key: "dataset", Default: "openwebtext", Group: "data", Help: "folder below data_dir with train.bin and val.bin", Commands: anyRun, field: func(c *Config) any { return &c.Dataset }},
	{Key: "gradient_accumulation_steps", Default: 5 * 8, Group: "data", Unit: "batches", Help: "batches summed into one update", Commands: memory, Min: 1, field: func(c *Config) any { return &c.GradientAccumulationSteps }},
	{Key: "batch_size", Default: 12, Group: "data", Unit: "sequences", Help: "sequences in a batch; times gradient_accumulation_steps is the effective batch", Commands: memory, Min: 1, field: func(c *Config) any { return &c.BatchSize }},
	{Key: "block_size", Default: 1024, Group: "data", Unit: "tokens", Help: "context length", Commands: memory, Min: 1, field: func(c *Config) any { return &c.BlockSize }},

	{Key: "n_layer", Default: 12, Group: "model", Help: "transformer blocks", Commands: memory, Min: 1, field: func(c *Config) any { return &c.NLayer }},
	{Key: "n_head", Default: 12, Group: "model", Help: "attention heads; must divide n_embd", Commands: memory, Min: 1, field: func(c *Config) any { return &c.NHead }},
	{Key: "n_embd", Default: 768, Group: "model", Help: "width", Commands: memory, Min: 1, field: func(c *Config) any { return &c.NEmbd }},
	{Key: "dropout", Default: 0.0, Group: "model", Help: "share of activations dropped in training", Commands: memory, Below: 1, field: func(c *Config) any { return &c.Dropout }},
	{Key: "bias", Default: false, Group: "model", Help: "biases in layernorms and linear layers", Commands: memory, field: func(c *Config) any { return &c.Bias }},

	{Key: "learning_rate", Default: 6e-4, Group: "optimizer", Help: "the highest learning rate", Commands: engine, field: func(c *Config) any { return &c.LearningRate }},
	{Key: "max_iters", Default: 600000, Group: "optimizer", Unit: "iterations", Help: "updates in the whole run", Commands: engine | Plan | Doctor, field: func(c *Config) any { return &c.MaxIters }},
	{Key: "weight_decay", Default: 1e-1, Group: "optimizer", Help: "AdamW's decay, on tensors of two or more dimensions", Commands: engine, field: func(c *Config) any { return &c.WeightDecay }},
	{Key: "beta1", Default: 0.9, Group: "optimizer", Help: "AdamW's first decay rate", Commands: engine, Below: 1, field: func(c *Config) any { return &c.Beta1 }},
	{Key: "beta2", Default: 0.95, Group: "optimizer", Help: "AdamW's second decay rate", Commands: engine, Below: 1, field: func(c *Config) any { return &c.Beta2 }},
	{Key: "grad_clip", Default: 1.0, Group: "optimizer", Help: "largest norm of the gradient; 0.0 is no clipping", Commands: memory, field: func(c *Config) any { return &c.GradClip }},

	{Key: "decay_lr", Default: true, Group: "optimizer", Help: "warm up, then decay the learning rate along a cosine", Commands: engine, field: func(c *Config) any { return &c.DecayLr }},
	{Key: "warmup_iters", Default: 2000, Group: "optimizer", Unit: "iterations", Help: "length of the warm-up", Commands: engine, field: func(c *Config) any { return &c.WarmupIters }},
	{Key: "lr_decay_iters", Default: 600000, Group: "optimizer", Unit: "iterations", Help: "where the cosine ends", Commands: engine, field: func(c *Config) any { return &c.LrDecayIters }},
	{Key: "min_lr", Default: 6e-5, Group: "optimizer", Help: "the learning rate after the cosine", Commands: engine, field: func(c *Config) any { return &c.MinLr }},

	{Key: "backend", Default: "nccl", Group: "system", Help: "nanoGPT's DDP backend; snug train uses one device", Commands: engine, field: func(c *Config) any { return &c.Backend }},
	{Key: "device", Default: "cuda", Group: "system", Help: "cuda, cuda:1 or cpu; unset is the GPU where there is one, else the CPU", Commands: anyRun, field: func(c *Config) any { return &c.Device }},
	{Key: "dtype", Default: "bfloat16", Group: "system", Help: "type of matmuls and activations", Commands: anyRun, Choices: []string{"float32", "bfloat16", "float16"}, field: func(c *Config) any { return &c.DType }},
	{Key: "compile", Default: true, Group: "system", Help: "torch.compile in PyTorch; snug's kernels are compiled already", Commands: anyRun, Sample: false, field: func(c *Config) any { return &c.Compile }},

	{Key: "start", Default: "\n", Group: "sampling", Help: "the prompt, or FILE:prompt.txt", Commands: sampler, field: func(c *Config) any { return &c.Start }},
	{Key: "num_samples", Default: 10, Group: "sampling", Help: "samples to draw", Commands: sampler, Min: 1, field: func(c *Config) any { return &c.NumSamples }},
	{Key: "max_new_tokens", Default: 500, Group: "sampling", Unit: "tokens", Help: "length of a sample", Commands: sampler, field: func(c *Config) any { return &c.MaxNewTokens }},
	{Key: "temperature", Default: 0.8, Group: "sampling", Help: "below 1.0 is less random, above is more", Commands: sampler, field: func(c *Config) any { return &c.Temperature }},
	{Key: "top_k", Default: 200, Group: "sampling", Help: "draw from the k likeliest tokens only", Commands: sampler, Min: 1, field: func(c *Config) any { return &c.TopK }},
	{Key: "seed", Default: 1337, Group: "sampling", Help: "seed of initialisation, data order, dropout and sampling", Commands: engine | Sample, field: func(c *Config) any { return &c.Seed }},

	{Key: "vocab_size", Default: 0, Group: "snug", Help: "vocabulary; 0 is the data's meta.pkl, else GPT-2's 50304", Commands: memory, field: func(c *Config) any { return &c.VocabSize }},
	{Key: "data_dir", Default: "data", Group: "snug", Help: "folder that holds the datasets", Commands: anyRun, field: func(c *Config) any { return &c.DataDir }},
	{Key: "data_order", Default: "random", Group: "snug", Help: "random windows as nanoGPT draws them, or the data in order", Commands: engine, Choices: []string{"random", "sequential"}, field: func(c *Config) any { return &c.DataOrder }},
	{Key: "vram", Default: units.Bytes(0), Group: "snug", Unit: "bytes", Help: "memory the run may take, such as 11.69GiB; unset is what is free", Commands: memory, field: func(c *Config) any { return &c.Vram }},
	{Key: "micro_batch", Default: 0, Group: "snug", Unit: "sequences", Help: "sequences that pass through snug's engine at once; 0 lets the planner choose", Commands: memory, field: func(c *Config) any { return &c.MicroBatch }},
	{Key: "recompute", Default: "auto", Group: "snug", Help: "what snug's engine recomputes in backward instead of keeping", Commands: memory, Choices: []string{"auto", "none", "gelu", "ln", "attention", "block"}, field: func(c *Config) any { return &c.Recompute }},
	{Key: "loss_chunk", Default: 0, Group: "snug", Unit: "tokens", Help: "tokens whose logits exist at once in snug's engine; 0 lets the planner choose", Commands: memory, field: func(c *Config) any { return &c.LossChunk }},
	{Key: "gradient_dtype", Default: "auto", Group: "snug", Help: "type of the layers' weight gradients; 16 bits need all sequences of an iteration at once", Commands: memory, Choices: []string{"auto", "float32", "bfloat16", "float16"}, field: func(c *Config) any { return &c.GradientDType }},
	{Key: "threads", Default: 0, Group: "snug", Help: "processor threads; 0 is all of them", Commands: engine | Sample, field: func(c *Config) any { return &c.Threads }},
	{Key: "tensorboard_log", Default: false, Group: "snug", Help: "write TensorBoard event files into out_dir", Commands: engine, field: func(c *Config) any { return &c.TensorboardLog }},
}

// Model is the size of a GPT: what a preset names and what memory follows from.
type Model struct {
	NLayer, NHead, NEmbd, BlockSize, VocabSize int
	Bias                                       bool
	Dropout                                    float64
}

// Presets are OpenAI's GPT-2 sizes under the names that init_from gives them. All have biases and 1024 positions.
var Presets = map[string]Model{
	"gpt2":        {NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50257, Bias: true},
	"gpt2-medium": {NLayer: 24, NHead: 16, NEmbd: 1024, BlockSize: 1024, VocabSize: 50257, Bias: true},
	"gpt2-large":  {NLayer: 36, NHead: 20, NEmbd: 1280, BlockSize: 1024, VocabSize: 50257, Bias: true},
	"gpt2-xl":     {NLayer: 48, NHead: 25, NEmbd: 1600, BlockSize: 1024, VocabSize: 50257, Bias: true},
}
