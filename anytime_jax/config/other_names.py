"""What the name of a setting that does not exist may mean, such as a word of another trainer."""

from collections.abc import Collection, Mapping
from typing import Any

from anytime_jax.errors import nearest

# Of each setting, the words that may be meant; a word of several settings is answered with all.
NAMES = {
    "name": "run_name experiment_name exp_name experiment",
    "run_dir": "output_dir out_dir save_dir checkpoint_dir ckpt_dir log_dir logdir workdir",
    "seed": "random_seed init_seed",
    "initial_weights": "init_from load_from pretrained from_pretrained pretrained_model "
    "model_name_or_path pretrained_model_name_or_path",
    "batch_size": "batch bs global_batch global_batch_size train_batch_size "
    "per_device_batch_size per_device_train_batch_size device_batch_size local_batch_size",
    "microbatches": "microbatch microbatch_size micro_batch micro_batch_size grad_accum "
    "grad_accum_steps gradient_accumulation gradient_accumulation_steps accum_steps "
    "accumulation_steps accumulate_grad_batches num_microbatches "
    "per_device_batch_size per_device_train_batch_size device_batch_size local_batch_size",
    "stop": "steps num_steps n_steps max_steps total_steps train_steps training_steps "
    "num_train_steps num_training_steps max_train_steps iters max_iters num_iters train_iters "
    "iterations num_iterations max_iterations epoch epochs num_epochs max_epochs n_epochs "
    "num_train_epochs tokens max_tokens total_tokens train_tokens num_tokens token_budget "
    "duration max_duration",
    "averages": "ema ema_decay swa",
    "clip_norm": "clip clip_grad clip_grad_norm grad_clip grad_clip_norm max_grad_norm max_norm "
    "gradient_clip gradient_clipping gradient_clip_val",
    "model.kind": "arch architecture model_type model_name model_family family",
    "model.layers": "num_layers n_layer n_layers nlayers num_hidden_layers num_blocks n_blocks "
    "depth",
    "model.heads": "num_heads n_head n_heads nheads num_attention_heads attention_heads",
    "model.kv_heads": "num_kv_heads n_kv_head n_kv_heads num_key_value_heads num_query_groups",
    "model.head_size": "head_dim d_head dim_head kv_channels",
    "model.width": "hidden hidden_size hidden_dim d_model dmodel model_dim n_embd n_embed embd dim "
    "embed_dim emb_dim embedding_dim embedding_size",
    "model.mlp_width": "intermediate_size ffn_hidden_size ffn_dim d_ff d_mlp mlp_dim mlp_ratio "
    "mlp_hidden_size ffn_size",
    "model.length": "seq_len seqlen seq_length sequence_length max_seq_len max_seq_length "
    "max_sequence_length block_size context context_length context_size context_window ctx_len "
    "ctx n_ctx n_positions max_position_embeddings max_length max_target_length",
    "model.vocab_size": "vocab n_vocab",
    "model.embedding_rows": "padded_vocab_size padded_vocab",
    "model.tied": "tie tie_weights weight_tying tie_embeddings tied_embeddings "
    "tie_word_embeddings untie_embeddings_and_output_weights",
    "model.rope_theta": "theta rope_base rotary_base",
    "model.parametrization": "parameterization mup use_mup",
    "model.base_width": "mup_base_width mup_base_hidden_size base_d_model d_model_base "
    "mup_base_shapes base_shapes",
    "model.norm_epsilon": "norm_eps rms_norm_eps layer_norm_eps layer_norm_epsilon",
    "model.z_loss": "zloss z_loss_weight z_loss_coeff",
    "model.dtype": "precision mixed_precision amp bf16 fp16 bfloat16 torch_dtype param_dtype "
    "compute_dtype",
    "model.attention": "attn flash flash_attn flash_attention use_flash_attention attention_impl "
    "attn_impl attn_implementation attention_type",
    "model.layer_loop": "scan scan_layers",
    "model.remat": "gradient_checkpointing activation_checkpointing activation_checkpoint "
    "remat_policy recompute use_remat",
    "model.attention_bias": "bias use_bias",
    "model.mlp_bias": "bias use_bias",
    "data.path": "dataset dataset_name dataset_path data_path data_dir train_data train_file "
    "train_files",
    "data.mixture": "datasets data_mix data_mixture mixture_weights",
    "data.vocabulary": "tokenizer tokenizer_name tokenizer_path",
    "data.seed": "data_seed shuffle_seed shuffle",
    "data.documents": "packing document_mask doc_mask mask_documents reset_attention_mask",
    "data.repeat": "epoch epochs num_epochs max_epochs n_epochs num_train_epochs",
    "schedule.kind": "scheduler lr_scheduler lr_scheduler_type lr_schedule lr_decay_style",
    "schedule.peak": "lr learning_rate max_lr lr_max peak_lr base_lr max_learning_rate "
    "peak_learning_rate eta",
    "schedule.warmup": "warmup_steps warmup_iters warmup_tokens warmup_ratio num_warmup_steps "
    "lr_warmup_steps lr_warmup",
    "schedule.horizon": "lr_decay_iters lr_decay_steps decay_steps",
    "schedule.floor": "min_lr lr_min eta_min min_learning_rate final_lr end_lr min_lr_ratio",
    "decay.floor": "min_lr lr_min eta_min min_learning_rate final_lr end_lr min_lr_ratio",
    "optimizer.kind": "optim optimizer_name optimizer_type",
    "optimizer.b1": "beta1 beta_1 adam_beta1 adam_b1 betas",
    "optimizer.b2": "beta2 beta_2 adam_beta2 adam_b2 betas",
    "optimizer.epsilon": "eps adam_eps adam_epsilon",
    "optimizer.weight_decay": "wd l2 adam_weight_decay adam_wd",
    "mesh.data": "dp data_parallel dp_size ddp devices num_devices gpus num_gpus n_gpus",
    "mesh.fsdp": "fsdp_size zero zero_stage sharding dp_shard",
    "mesh.tensor": "tp tp_size tensor_parallel tensor_parallel_size model_parallel "
    "tensor_model_parallel_size",
    "eval.every": "eval_every eval_interval eval_steps eval_freq val_every val_interval "
    "val_check_interval",
    "eval.tokens": "eval_iters eval_tokens eval_batches val_tokens",
    "eval.batch_size": "eval_batch_size val_batch_size per_device_eval_batch_size",
    "checkpoint.every": "save_every save_steps save_interval save_freq checkpoint_every "
    "checkpoint_interval ckpt_every ckpt_interval",
    "checkpoint.keep": "save_total_limit max_to_keep keep_last save_top_k",
    "log.every": "log_every log_interval log_steps log_freq logging_steps",
    "log.trackers": "tracker loggers wandb use_wandb wandb_log wandb_project project report_to "
    "tensorboard use_tensorboard enable_tensorboard mlflow trackio",
}
# What there is no setting for, and the words for it.
ABSENT = {
    "there is no dropout": "dropout dropout_rate attn_pdrop resid_pdrop embd_pdrop "
    "attention_dropout hidden_dropout",
    "there is no label smoothing": "label_smoothing",
    "there are no experts": "moe experts num_experts n_experts n_routed_experts",
    "there are no pipelines of devices": "pp pp_size pipeline_parallel pipeline_parallel_size "
    "pipeline_model_parallel_size",
    "a sequence is not split over devices": "cp context_parallel context_parallel_size "
    "sequence_parallel",
    "there are no products of 8 bits": "fp8 int8 quantization",
    "the same command resumes a run": "resume resume_from resume_from_checkpoint auto_resume",
    "every update is compiled": "compile torch_compile jit",
    "batches are read ahead as they are": "num_workers dataloader_num_workers prefetch_factor",
}


def explain_unknown(name: str, siblings: Collection[str], known: Mapping[str, Any]) -> str:
    """Returns what is wrong with the unknown dotted name of a setting.

    The name may be a setting of another kind or another group, a word of another trainer, or
    misspelt. `siblings` are the names in its group. `known` has the declarations of all settings by
    dotted name.
    """
    reason, last = "there is no such setting", name.rpartition(".")[2]
    if (own := known.get(name)) and own.kinds:
        return f"{reason} but with kind = {' or '.join(map(repr, own.kinds))}"
    word = last.lower()
    if absent := next((x for x, words in ABSENT.items() if word in words.split()), None):
        return f"{reason}: {absent}"
    others = [x for x in known if x != name]
    meant = [x for x in others if word in NAMES.get(x, "").split() or x.rpartition(".")[2] == last]
    if meant:
        meaning = f" ({known[meant[0]].meaning})" if len(meant) == 1 else ""
        return f"{reason}: did you mean {' or '.join(meant)}{meaning}?"
    return reason + (nearest(last, siblings) or f": there are {', '.join(siblings)}")
