"""Builds the embedded model's tokenizer: byte-level BPE, one token per digit.

`python -m backend.demo.tokenizer` writes it to `models/demo`. The text it learns from is generated
with a fixed seed, so the result is always the same.
"""

import random
import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from backend.demo import tasks

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 1024
CONTEXT = 4096


def corpus(documents: int = 3000, seed: int = 0) -> list[str]:
    """Short texts of every task; enough to see every word many times."""
    rng = random.Random(seed)
    names = list(tasks.TASKS)
    samples = [tasks.sample(names[i % 4], rng=rng, filler=10) for i in range(documents)]
    # Without the letters of the steps, which are to stay tokens of their own.
    return [re.sub(r"Step [A-Z] ", "Step ", s.prompt + s.answer) for s in samples]


def build(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # Digits first: no merge can cross a digit, and a space before a number stays its own token.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    build().save_pretrained(Path(tasks.TOKENIZER_FILE).parent)
