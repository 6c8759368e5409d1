"""A deliberately naive second implementation of docs/methods.md (METHODS below) to test against.

`replay(key, queries, keys, values, prompt_length, budget=…, **options)` walks a capture in float64,
one query and one head at a time. It was written from METHODS alone; where that leaves a choice,
this is the one made here (`file`: choice):

Budgets and edges
- `common`: B = max(1, floor). A compression ratio of `lagkv` & co. is taken over P + T; their r is
  then the largest whose length *at the end of prefill* is within B (live knows no T).
- `every_step`: a sink shrinks to min(S, B − 1), so B = S leaves room for the newest entry.
- `scope="context"`: the window is the context's last w queries, and B counts context entries only.
  Policies that evict while decoding, and SAGE-KV, have no scope here.
- `sage`: nothing is selected if P ≤ S + k + R + 1 *or* P ≤ B; both sentences of METHODS hold.

Scores
- `window`: sums, then group mean, then drop w columns, then pool; even kernels lean left.
- `lookahead`: pooled over all prompt columns; LAQ++ drops its last W only afterwards. With
  `mask="released"` row i of m sees N − m + i + 1 keys (LAQ: n rows; LAQ++: W + n).
- `expected`: covariance divides by n; softmax over all keys of the span, sinks included; queries
  are unrotated by position and turned by the mean rotation of positions N … N + n_future − 1.
- `lazy` (R-KV): two windows need two names: `interval` is W, `window` the 8 queries, which are kept
  besides the top B − 8. R is over all cached keys and its softmax too; A over the candidates.
  Nothing is zeroed in a row without a key above `similarity`. Pooling runs along cached entries.
- `statistics` (RaaS): a stamp starts at the entry's birth step; prompt rows stamp with their steps
  ≤ 0. `raas_window` pins nothing and keeps RaaS's tie rule. `tova_window` keeps one set per layer.
- `lazy`: `h2o_window` counts the prompt's own rows, `lazyeviction` does not.
- `composite`: `source="self"` uses the context's rows, not the question's. KVzip reduces the group
  row by row before the maximum, keeps its sinks within the budget, and never ranks the question;
  with chunks a row sees the whole first copy and its own chunk of the second.
- `bounds`: future attention is the full cache's, steps after the decision; Belady's alpha 5e-4,
  never used again is worst. Random: `default_rng([seed, layer, head])`, one number per position.

Allocations
- `allocate`: rounding is half up; what is missing goes one by one to the largest remainder (ties:
  lower head), what is too much leaves the smallest (ties: higher head). Equal scores of different
  heads: lower (layer, head) first. `preset="kvpress"` pins ⌊alpha_floor·B⌋ *scored* entries.
  For `ada_expected_attention` the sinks take the window's place in c = B − w.
- `composite`: unstructured totals ⌊(1 − r)·L·H·N⌋ (a budget: B·L·H), without a floor per layer.

Selection
- `sage`, `select`: `visible[.., t, :]` is what the query of step t attends to, its own entry
  included; t = 0 is what SAGE-KV's selection left, and the dense prompt for Quest and InfLLM.
  SAGE-KV's last prompt token slides out with the window of R + 1.
- Quest: pages from position 0, the last one partial; no page is forced, not even the newest.
- InfLLM: blocks from `init` up to the local window, the last one partial; most attended by the
  full cache's attention so far; the mean query of the group; if init + local > B both are scaled
  by B / (init + local).
- DuoAttention: outside = Σ over prompt rows of the attention at S ≤ j ≤ i − R; the share is of all
  (layer, head) pairs. A budget sets the streaming heads' size.

Curves and costs
- `recall`: `logits` are unscaled and unmasked, also inside the prompt; empty windows are NaN.
- `recurrence`: `count="from_first"` drops every token's first interval, not only the prompt's.
- `cost`: mass and output error are per query head, recall and regret per keep-set, over the mean
  row of its query heads; what any of them sees counts as left.
"""

from .allocate import head_adaptive_counts, pyramid
from .common import Decision, Outcome, Trace
from .composite import Composite, compose
from .cost import Costs, costs
from .entry import POLICIES, make_trace, replay
from .lag import keep_ratio_for, length_after
from .recall import recall_curve
from .recurrence import Tracked, track
from .sage import sizes
from .statistics import h1_score, h2_score

__all__ = [
    "POLICIES",
    "Composite",
    "Costs",
    "Decision",
    "Outcome",
    "Trace",
    "Tracked",
    "compose",
    "costs",
    "h1_score",
    "h2_score",
    "head_adaptive_counts",
    "keep_ratio_for",
    "length_after",
    "make_trace",
    "pyramid",
    "recall_curve",
    "replay",
    "sizes",
    "track",
]
