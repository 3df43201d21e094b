package oom

import "regexp"

// phrase is what people call something in more than one word, where the words alone say less or other things.
type phrase struct {
	expr func() *regexp.Regexp
	sight
	not kind // of words that say more
}

// phrases are tried in order. A new way to say it is a row, or a piece of one.
var phrases = []phrase{
	{lazy(`(?i)\b(?:mov|send|transfer|put|plac)\w* (?:the |my |this |whole |entire )*(?:\w+ )?(?:model|network|net|weights|unet|vae|encoder|transformer) (?:\w+ ){0,2}(?:to|on|onto|into)\b|\b(?:model|network|net|unet|vae) (?:is|was|gets|being) (?:moved|sent|transferred|put|placed)\b`), sight{doing: Init}, kLoad},
	{lazy(`(?i)\bread(?:s|ing)? (?:the |my |an? )?(?:\S+\.(?:bin|pth?|ckpt|safetensors|gguf)\b|(?:\w+ )?weights\b|(?:\w+ )?checkpoints?\b)`), sight{doing: Load}, 0},
	{lazy(`(?i)\b(?:build|creat|construct|instantiat)(?:e|es|ing|ed)? (?:the |an? |my )*(?:\w+ )?(?:model|network|unet)\b`), sight{doing: Init}, kLoad | kData | kDataset},
	{lazy(`(?i)\bwrap\w* (?:\w+ ){0,3}(?:in|with|into|by|as) (?:\w+ )?(?:ddp|fsdp|\w*dataparallel|\w*data_parallel|deepspeed)\b`), sight{doing: Init}, 0},
	{lazy(`(?i)\b(?:reserv|allocat|initiali[sz]|creat|profil)\w* (?:\w+ ){0,3}kv[ -_]?cache\b|\bkv[ -_]?cache (?:alloc|init|creat|reserv|does not fit|doesn't fit|is too large)\w*`), sight{doing: Init}, 0},
	{lazy(`(?i)\bupdat(?:e|es|ing|ed)(?: of)? (?:the |my |its |all )*(?:\w+ )?(?:weights?|param\w*)\b|\b(?:weights?|param(?:eter)?s?|sgd|adam\w*|optimi[sz]er)(?: (?:are|is|were|being|get))? updat(?:e|es|ed|ing)\b|\bgradient clipping\b|\bclip\w* (?:the )?(?:gradients?|grad norm)\b|\b(?:optimi[sz]er|adam\w*)(?:'s)? (?:\w+ )?(?:states?|moments?|momentum|buffers?)\b|\badam\w* (?:allocat|creat)\w*`), sight{doing: Optimizer}, kLoad | kSave},
	{lazy(`(?i)\bback-?propagat\w*|\b(?:comput|calculat|accumulat)\w* (?:of )?(?:the )?(?:\w+ )?gradients?\b|\bgradient (?:computation|calculation)s?\b`), sight{doing: Backward}, 0},
	{lazy(`(?i)\bwrit\w* (?:out )?(?:the |an? |my )*(?:\w+ )?(?:checkpoint|ckpt|weights|state)|\bmerg(?:e|es|ed|ing) (?:\w+ ){0,3}(?:lora|adapters?|weights|models?|checkpoints?|shards)\b|\b(?:lora|adapter|model|weights) merg(?:e|ing)\b|\b(?:gather|collect|consolidat)\w* (?:\w+ ){0,3}state[_ ]?dict|\bfull[_ ]state[_ ]?dict\b|\bstate[_ ]?dict\W{0,4}(?:gather|collect|consolidat|saving)\w*|\bdump\w* (?:the )?(?:model|weights|checkpoint)`), sight{doing: Save}, kLoad},
	{lazy(`(?i)\b(?:dataset|data|corpus|images|frames|samples) (?:is|are|was|were|gets?|being) (?:\w+ )?(?:read|loaded|cached|converted|stacked|concatenated|tokeni[sz]ed|preprocessed)\b|\b(?:build|creat|construct|load|read)\w* (?:the |an? |my )*(?:\w+ )?(?:vocab\w*|dictionary|embedding matrix|(?:word )?vectors|glove|word2vec|annotations?)\b|\bdata ?loaders?\b`), sight{doing: Data}, kEval | kTrain | kSample},
	{lazy(`(?i)\b(?:trtexec|torch2trt|onnx2tf|onnx2trt|trtllm-build)\b|\bbuild\w* (?:\w+ ){0,3}(?:trt|tensorrt)\b|\b(?:build|creat)\w* [^.\n]{0,30}\bengine\b[^.\n]{0,40}\bonnx\b|\b(?:build|creat)\w* [^.\n]{0,30}\b(?:trt|tensorrt) engine\b|\btorch\.?script(?:ing)?\b|\bautotun\w+`), sight{doing: Compile}, 0},
	{lazy(`(?i)\bcomput\w*[ _](?:the |my )?(?:\w+ )?(?:metrics?|accuracy|map|fid|bleu|rouge|wer|psnr|auc|f1)\b|\bcalculat\w* (?:the |my )?(?:\w+ )?(?:metrics?|accuracy|map|fid|bleu|rouge|wer|psnr|auc|f1)\b|\blm[_-]eval\w*|\b(?:mmlu|gsm8k|hellaswag|humaneval|longbench|imagenet-?val)\b|\blinear prob(?:e|ing)\b`), sight{purpose: Eval}, 0},
	{lazy(`(?i)\brender(?:s|ing|ed)? (?:the |all |an? |my )*(?:\w+ )?(?:views?|videos?|images?|frames?|mesh|scenes?|path|trajectory)\b|\b(?:few|several|some|many|\d+|second|concurrent|long|longer|multiple|parallel) (?:\w+ )?(?:requests?|prompts?|queries|questions)\b|\blong(?:er)? (?:audios?|recordings?|podcasts?|pdfs?|conversations?|chats?|videos?)\b|\bquick[ -]?start\b`), sight{purpose: Sample}, kTrain | kLoad | kSave | kBuild},
	{lazy(`(?i)\bloss (?:computation|calculation)\b|\b(?:comput|calculat)\w* (?:of )?(?:the )?(?:\w+ )?(?:loss|losses|softmax|logits|attention|activations?|cross[ -]entropy)\b`), sight{doing: Forward}, kEval | kSample},
}

// phrased is the phase of the first row that a text holds, unless something else is named before it: that is what was done.
func phrased(text string) sight {
	for _, p := range phrases {
		if at := p.expr().FindStringIndex(text); at != nil && !read(text).has(p.not) && !read(text[:at[0]]).has(kEval|kSample|kLoad|kSave|kExport|kBackward) {
			return p.sight
		}
	}
	return sight{}
}
