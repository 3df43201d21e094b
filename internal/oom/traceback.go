package oom

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Frame is one call of a Python traceback.
type Frame struct {
	Path string
	Line int
	Func string
	Code string // the source line, where the log shows it
}

// Traceback is the calls that led to a failure, outermost first.
type Traceback []Frame

const (
	maxFrames = 256 // the outer half and the inner half of a deeper one are kept
	maxCode   = 400
)

// callForm is one way a call is printed: the literal that marks it and the expression that reads it.
type callForm struct {
	anchor string
	expr   func() *regexp.Regexp
}

func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// callForms are Python's, IPython's (old and new), rich's, notebook cells' and Colab's ways to print a call.
var callForms = []callForm{
	{`", line `, lazy(`(?:File \\?"|^\s*)(?P<path>[^"\n]{1,500}?)\\?", line (?P<line>\d+)(?:, in (?P<func>[^\s\\,]+))?`)},
	{".py:", lazy(`(?:File )?(?P<path>[\w~/.\\-][^\s":│|]{0,400}\.py):(?P<line>\d+),? in (?P<func>[\w.<>]+)`)},
	{".py in ", lazy(`(?P<path>[\w~/.\\:<>-][^\n"│|]{0,400}?\.py) in (?P<func>[\w.<>]+)`)},
	{"<ipython-input", lazy(`(?P<path><ipython-input-[^>\s]+>) in (?P<func>[\w.<>]+)`)},
	{"cell in[", lazy(`(?P<path>Cell In\[\d+\])(?:, line (?P<line>\d+)|, in (?P<func>[^\n(]+))`)},
	{"input in [", lazy(`(?P<path>Input In \[\d+\]), in (?P<func>[^\n(]+)`)},
	{"](https://localhost", lazy(`\[(?P<path>[^\[\]\n]{1,400})\]\(https://localhost[^)\s]*\) in (?P<func>[\w.<>]+)`)},
}

// codeExpr is a source line marked as the failing one: IPython's arrow or rich's.
var codeExpr = lazy(`^\s*│?\s*(?:-+>|❱)\s*\d+\s*│?\s?(.*)$`)

// calls finds the calls printed in one line. Text between two calls on it is the source line of the first.
func (form callForm) calls(line string) []Frame {
	expr := form.expr()
	found := expr.FindAllStringSubmatchIndex(line, maxFrames)
	frames := make([]Frame, len(found))
	for i, loc := range found {
		group := func(name string) string {
			if g := expr.SubexpIndex(name); g >= 0 && loc[2*g] >= 0 {
				return line[loc[2*g]:loc[2*g+1]]
			}
			return ""
		}
		frames[i] = Frame{Path: strings.TrimSpace(group("path")), Func: unqualified(group("func"))}
		if n := number(group("line")); n != nil {
			frames[i].Line = *n
		}
		end := len(line)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		if code := strings.TrimSpace(line[loc[1]:end]); len(found) > 1 && len(code) < maxCode {
			frames[i].Code = code
		}
	}
	return frames
}

// unqualified drops the class that IPython prints before a method: Trainer.evaluate is evaluate.
func unqualified(fn string) string {
	fn = strings.TrimRight(fn, ":.")
	return fn[strings.LastIndexByte(fn, '.')+1:]
}

// push adds a call, forgetting the middle of a traceback that is too deep.
func (t Traceback) push(f Frame) Traceback {
	if len(t) == maxFrames {
		t = append(t[:maxFrames/2], t[maxFrames/2+1:]...)
	}
	return append(t, f)
}

// mark is evidence for a phase in one call. A call matches when every pattern given matches.
type mark struct {
	phase Phase
	path  string
	fn    string
	code  string
	hint  bool // only the script's name says so: it tells one forward from another, and nothing else

	pathExpr, fnExpr, codeExpr *regexp.Regexp
}

// strength orders the phases: a call inside another can only make the phase more special. The forward of an
// evaluation is evaluation, the forward recomputed by a backward is backward.
var strength = map[Phase]int{
	UnknownPhase: 0, Init: 1, Forward: 2, Sample: 3, Eval: 4, Load: 5, Optimizer: 6, Backward: 7, Compile: 8,
}

var marks = sync.OnceValue(func() []mark { return compileMarks(markTable) })

// markTable is tried for each call in order, so what is more special stands first. An UnknownPhase mark starts
// over: Lightning runs the whole step as a closure inside optimizer.step.
var markTable = []mark{
	{phase: UnknownPhase, fn: `^(closure|_wrap_closure|_wrapped_closure|train_step_and_backward_closure)$`},
	{phase: UnknownPhase, code: `^\s*(loss|\w+) = closure\(\)|with torch\.enable_grad\(\):`, path: `torch/optim`},
	{phase: UnknownPhase, fn: `(train|fit)\w*_(eval|val)`}, // train_and_evaluate does both
	{phase: Compile, path: `torch/_inductor/(compile_fx|graph|select_algorithm|autotune_process|scheduler|async_compile)\.py`, fn: `^(compile_fx|compile_fx_inner|_compile_fx_inner|fx_codegen_and_compile|codegen_and_compile|inner_compile|compile_to_\w+|benchmark\w*|autotune\w*|codegen|_compile_fx_main|bw_compiler|fw_compiler\w*)$`},
	{phase: Compile, path: `torch/_dynamo/(convert_frame|output_graph)\.py`, fn: `^(_?compile\w*|transform|call_user_compiler|_call_user_compiler|compile_and_call_fx_graph)$`},
	{phase: Compile, fn: `^(benchmark_all_configs|autotune_to_one_config|do_bench\w*|backend_compile|compile_or_get_cached)$`},
	{phase: Load, path: `torch/serialization\.py|safetensors/torch\.py|torch/_utils\.py|accelerate/big_modeling\.py`, fn: `^(_?load\w*|persistent_load|default_restore_location|_cuda_deserialize|_deserialize|restore_location|_rebuild\w*|wrap_storage|_get_storage\w*|cpu_offload|dispatch_model)$`},
	{phase: Load, fn: `^_?(load_state_dict\w*|load_checkpoint\w*|load_model\w*|load_pretrained\w*|load_weights?\w*|load_ckpt\w*|load_from_\w+|load_torch_file|load_shard\w*|load_lora\w*|load_adapter\w*|load_pipeline\w*|load_models_gpu|from_pretrained|from_single_file|from_ckpt|_load_\w*(model|state|checkpoint|weights)\w*|set_module_\w+_to_device|resume(_from\w*|_checkpoint\w*|_model\w*|_state\w*)?|restore(_\w+)?|partially_load|model_load|load_state|load_optimizer\w*)$`},
	{phase: Load, code: `\btorch\.load\(|load_state_dict\(|from_pretrained\(|load_checkpoint\(|load_model\(|load_file\(|set_module_\w+_to_device\(`},
	{phase: Backward, fn: `^(backward|_engine_run_backward|run_backward|loss_backward|apply_backward|manual_backward|backward_step|_backward\w*|do_backward|backward_fn)$`},
	{phase: Backward, code: `\.backward\(|\bautograd\.grad\(|_run_backward\(`},
	{phase: Optimizer, path: `torch/optim/(\w*adam\w*|sgd|optimizer|\w*grad|rmsprop|lbfgs|\w+_?optim\w*)\.py`},
	{phase: Optimizer, path: `(bitsandbytes|deepspeed/ops|fairscale|colossalai\S*|galore_torch|came_pytorch)/\S*optim|apex/optimizers|deepspeed/ops/adam|prodigyopt|adafactor\w*\.py|lion\w*\.py`, fn: `^(step|update_step|init_state|get_state_buffer|__setstate__|_init_group|_init_state)$`},
	{phase: Optimizer, fn: `^((run_|_)?optimizer_step|optim_step|take_model_step|_take_model_step|scaler_step|_maybe_opt_step|maybe_initialize_optimizer_states|initialize_optimizer_states|clip_grad_norm_?|adam|adamw|_multi_tensor_adamw?|_fused_adamw?|_single_tensor_adamw?)$`},
	{phase: Optimizer, code: `\b(optimizers?|optim|optimizer_?\w+|opt|\w*_optimizer|optimizer\[\w+\]|\w*scaler)\.step\(|\boptimizer'\]\.step\(|clip_grad_norm_?\(`},
	{phase: Eval, fn: `^_?(estimate_loss|(run_|do_|call_)?_?(eval|evaluate|evaluation|validate|validation|valid|val|test)(_(?:step|loop|loss|epoch|model|one_epoch|dataset|batch|fn|metrics|iter|net|net_work|network|acc|and_save|and_log|perplexity|ppl|on_\w+|func|model_\w+|loop_\w+|sft|lm|dl|dataloader|data))?|prediction_step|prediction_loop|run_sanity_check|_run_sanity_check|inference_on_dataset|single_gpu_test|multi_gpu_test|compute_metrics|maybe_log_save_evaluate|log_validation)$`},
	{phase: Eval, hint: true, path: `(^|[/\\])(val|eval|evaluate|evaluation|validate|test|run_eval\w*|eval_\w+|test_net|test_\w+)\.py$`, fn: `^(<module>|main|run)$`},
	{phase: Eval, path: `transformers/trainer_pt_utils\.py`, fn: `^(nested_\w+|torch_pad_and_concatenate|distributed_concat)$`}, // predictions gathered
	{phase: Eval, fn: `^_*(\w+_)?(evaluat(e|ion)|validat(e|ion)|eval|valid|val)(_\w+)?$`},
	{phase: Eval, code: `\bestimate_loss\(|\b(trainer|self|model|learn)\.(evaluate|validate|test)\(|\b(evaluate|validate|validation)\(`},
	{phase: Eval, code: `call_hook\(['"]after_train_epoch['"]`}, // mmcv's runner: its hooks evaluate there
	{phase: Sample, fn: `^_?(generate\w*|sample|samples|sampling|greedy_search|_?beam_search|group_beam_search|contrastive_search|assisted_decoding|prefill|p_sample\w*|ddim_sampl\w*|sample_\w+|inference\w*|infer\w*|predict\w*|txt2img\w*|img2img\w*|text2img\w*|process_images\w*|common_ksampler|inner_sample|denoise\w*|decode_first_stage|execute_model|run_inference|transcribe\w*|detect\w*|super_resolve|enhance|chat|stream_chat|vae_decode\w*|upscale\w*)$`},
	{phase: Sample, path: `diffusers/pipelines/|transformers/pipelines/`, fn: `^(__call__|forward|_forward|run_single|decode_latents)$`},
	{phase: Sample, path: `transformers/generation/|k_diffusion/sampling`, fn: `^(\w*sample\w*|__call__)$`},
	{phase: Sample, hint: true, path: `(^|[/\\])(sample|generate|inference|infer|predict|demo|detect|txt2img|img2img|text2img|gradio\w*|webui|app|cli_demo|web_demo)\.py$`, fn: `^(<module>|main|run|\w*sample\w*|__call__)$`},
	{phase: Sample, code: `\.generate\(|\bpipe(line)?\(|\bpredictor\(|\.decode_(first_stage|latents)\(|\b(model|sampler|pipe\w*|diffusion)\.(sample|inference|infer|predict)\(`},
	{phase: Sample, hint: true, path: `/gradio/(routes|queueing|route_utils|blocks)\.py$`},  // a page's button was pressed
	{phase: UnknownPhase, hint: true, fn: `^(train|train_\w+|training|training_step|fit)$`}, // trains, whatever the script's name
	{phase: Init, path: `torch/nn/modules/module\.py`, fn: `^(to|cuda|_apply|convert|float|half|bfloat16|to_empty|<lambda>)$`},
	{phase: Init, fn: `^(__init__|init_weights|_init_weights|reset_parameters|init_model|build_model|create_model|get_model|setup_model\w*|prepare_model|_prepare_one|_prepare_(?:fsdp|deepspeed|megatron_lm)|_recursive_wrap|_move_model_to_device|initialize|init_device|_lazy_init|_ddp_init_helper|_sync_module_states|_sync_params_and_buffers|_verify_param_shape_across_processes|move_to_device|model_to_device|setup|to_device|init_process_group|place_model|determine_available_memory|profile_run|determine_num_available_blocks|_initialize_kv_caches|initialize_cache)$`},
	{phase: Init, code: `\b(\w*model\w*|net|net_?[A-Z]\w*|net\d|network|pipe\w*|unet|vae|encoder|decoder|netG|netD|generator|discriminator|\w*_net)\.(to|cuda)\(|\bDistributedDataParallel\(|\bDDP\(|\bFSDP\(|\bwrapper_cls\(module|\.prepare_model\(|\bmodule\._apply\(fn\)|\bself\._apply\((?:convert|lambda)`},
	{phase: Forward, fn: `^(forward|_call_impl|_wrapped_call_impl|training_step|compute_loss|_forward\w*|forward_\w+|call|parallel_apply|train_step|apply_model|\w+_loss(es)?)$`},
	{phase: Forward, path: `torch/nn/(functional|modules|parallel/(data_parallel|parallel_apply|replicate|scatter_gather|comm|_functions))|/(diffusers|transformers|torchvision|timm)/models/`},
	{phase: Forward, code: `\b(model|model_\w+|net|network|netG|netD|generator|discriminator|criterion|loss_fn|loss_func|unet)\(|\.forward\(|\bforward_call\(`},
}

func compileMarks(table []mark) []mark {
	ms := slices.Clone(table)
	for i := range ms {
		m := &ms[i]
		for _, p := range []struct {
			pattern string
			expr    **regexp.Regexp
		}{{m.path, &m.pathExpr}, {m.fn, &m.fnExpr}, {m.code, &m.codeExpr}} {
			if p.pattern != "" {
				*p.expr = regexp.MustCompile(p.pattern)
			}
		}
	}
	return ms
}

func (m *mark) matches(f Frame) bool {
	return (m.pathExpr == nil || m.pathExpr.MatchString(f.Path)) &&
		(m.fnExpr == nil || m.fnExpr.MatchString(f.Func)) &&
		(m.codeExpr == nil || m.codeExpr.MatchString(f.Code))
}

// Phase says what the program was doing, from the calls it was inside of.
func (t Traceback) Phase() Phase {
	phase, script := UnknownPhase, UnknownPhase
	for _, f := range t {
		f.Path = strings.ReplaceAll(strings.ReplaceAll(f.Path, `\`, "/"), "//", "/")
		if m := f.mark(true); m != nil {
			script = m.phase
		}
		if m := f.mark(false); m != nil && (m.phase == UnknownPhase || strength[m.phase] > strength[phase]) {
			phase = m.phase
		}
	}
	if script != UnknownPhase && (phase == UnknownPhase || phase == Forward) {
		return script
	}
	return phase
}

// mark is the first one that fits this call, of the hints or of the others; nil when none does.
func (f Frame) mark(hint bool) *mark {
	all := marks()
	for i := range all {
		if all[i].hint == hint && all[i].matches(f) {
			return &all[i]
		}
	}
	return nil
}
