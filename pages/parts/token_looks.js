// The two looks of a text: the attention of one query, and what a policy has evicted.
// A look decodes its data (read, which tells when what it fetches has arrived), knows whether a step has arrived (ready), paints one token,
// and finds the words for the bar, for a token and for what lies out of sight.

const FULL_SHADE = 0.5            // the weight that gets the full shade
const LOG_FLOOR = 1e-3            // with logarithmic shades, the weight that gets none
const EDGE_MASS = 0.02            // attention out of sight that is worth a mark at the edge
const KEPT_SHADE = 0.75           // shade of a token that all layers and heads keep
const keptShade = share => KEPT_SHADE * Math.sqrt(share)
const EVICTED = 4, UNSEEN = 6     // analysis.eviction_codes.Code

const HALF = (() => {             // float16 bits -> number
  const table = new Float32Array(65536)
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023
    const size = exponent === 0 ? fraction * 2 ** -24
      : exponent === 31 ? (fraction ? NaN : Infinity)
      : (1 + fraction / 1024) * 2 ** (exponent - 15)
    table[bits] = bits & 0x8000 ? -size : size
  }
  return table
})()

function bytes(base64) {
  const text = atob(base64), out = new Uint8Array(text.length)
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i)
  return out.buffer
}

const whole = value => Math.round(value).toLocaleString("en-US")
const short = value => value === 0 ? "0"
  : Math.abs(value) < 5e-5 || Math.abs(value) >= 1e6 ? value.toExponential(1)
  : Math.abs(value) >= 1000 ? whole(value) : String(Number(value.toPrecision(3)))
const weightText = value => value === 0 ? "0" : value < 5e-5 ? value.toExponential(1) : value.toPrecision(3)

function element(tag, className, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined) node.textContent = text
  return node
}

function shadeOf(weight, log) {
  if (!(weight > 0)) return 0
  const share = log ? Math.log(weight / LOG_FLOOR) / Math.log(1 / LOG_FLOOR) : Math.sqrt(weight / FULL_SHADE)
  return Math.min(1, Math.max(0, share))
}

const inWindow = self => self.step >= self.data.firstStep && self.step < self.data.firstStep + self.data.count
const positionOf = self => self.step + self.data.prompt - 1
const swatch = (text, shade) => {
  const node = element("span", "swatch", text)
  node.style.backgroundColor = `rgba(var(--shade), ${shade})`
  return node
}
const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`

const ATTENTION = {
  help: "Point at a token for its weight; click it to look from there. Arrow keys move, Enter looks, ↑ ↓ change the step, space plays.",
  read(self, arrived) {
    const { rows } = self.data
    if (self.sent === rows) return // another step of those that are here already
    Object.assign(self, { sent: rows, rows: null, lost: false })
    fetch(new URL(rows, document.baseURI)).then(answer => answer.ok ? answer.arrayBuffer() : null, () => null).then(sent => {
      if (self.sent !== rows) return
      self.rows = sent && new Uint16Array(sent)
      self.lost = !sent
      arrived()
    })
  },
  ready: self => Boolean(self.rows) && inWindow(self),
  row(self) {
    if (!this.ready(self)) return null
    const start = (self.step - self.data.firstStep) * self.data.length
    return Float32Array.from(self.rows.subarray(start, start + self.data.length), bits => HALF[bits])
  },
  legend(self) {
    return [element("span", "quiet", "attention"), ...(self.data.log ? [0.003, 0.01, 0.1, 1] : [0.01, 0.05, 0.2, 0.5])
      .map(weight => swatch((weight === FULL_SHADE ? "≥ " : "") + weight, shadeOf(weight, self.data.log)))]
  },
  start(self) { self.row = this.row(self) },
  token(self, token, index, at) {
    const { data, row } = self
    return shadeOf(row && !(data.hideSink && at < data.sink) ? row[at] : 0, data.log)
  },
  where: self => self.lost ? " · its attention did not arrive: reload the page" : "",
  words(self, index, at) {
    if (at > positionOf(self)) return " · comes after this step"
    if (!self.row) return ""
    let rank = 1
    const weight = self.row[at]
    for (const other of self.row) if (other > weight) rank++
    return ` · weight ${weightText(weight)} · rank ${whole(rank)} of ${whole(positionOf(self) + 1)}`
  },
  // How much attention lies above and below what is in sight; a click goes to its largest weight.
  edges(self, side) {
    const { data, row } = self, sums = [0, 0], best = [null, null]
    for (let at = data.hideSink ? data.sink : 0; row && at <= positionOf(self); at++) {
      const where = side(at)
      if (where === null || !(row[at] > 0)) continue
      sums[where] += row[at]
      const index = at - data.first
      if (self.tokens[index] && (best[where] === null || row[at] > row[data.first + best[where]])) best[where] = index
    }
    return sums.map((sum, where) => sum < EDGE_MASS ? null : [`${sum.toFixed(2)} of the attention is`, best[where]])
  },
  clicked: (self, index) => self.data.first + index - self.data.prompt + 1,
}

// Numbers per token over the steps, sent as those of the first step and what changes later.
class Changes {
  constructor(sent, kind) {
    this.base = new kind(bytes(sent.base))
    this.offsets = new Int32Array(bytes(sent.offsets))
    this.tokens = new Uint16Array(bytes(sent.tokens))
    this.values = new kind(bytes(sent.values))
    this.reset()
  }
  reset() { this.now = this.base.slice(); this.index = 0 }
  at(index) {
    if (index < this.index) this.reset()
    for (let i = this.offsets[this.index]; i < this.offsets[index]; i++) this.now[this.tokens[i]] = this.values[i]
    this.index = index
    return this.now
  }
}

const EVICTION = {
  help: "Point at a token for its score, rank and reason; click an evicted one to go to the step at which it goes. Arrow keys move, ↑ ↓ change the step, space plays.",
  read(self) {
    const { data } = self
    self.codeChanges = new Changes(data.codes, Uint8Array)
    self.holderChanges = new Changes(data.holders, Int32Array)
    self.kept = new Int32Array(bytes(data.kept))
    self.score = new Float32Array(bytes(data.score))
    self.rank = new Int32Array(bytes(data.rank))
    self.evictedAt = new Int32Array(bytes(data.evictedAt))
    self.isEvidence = at => data.evidence.some(([first, stop]) => at >= first && at < stop)
  },
  ready: inWindow,
  start(self) {
    if (!inWindow(self)) return
    self.codes = self.codeChanges.at(self.step - self.data.firstStep)
    self.holders = self.holderChanges.at(self.step - self.data.firstStep)
  },
  legend(self) {
    const gone = element("span", "swatch gone", self.data.chooses ? "not attended" : "evicted")
    const parts = [element("span", "quiet", self.data.chooses ? "attended by" : "kept by"), ...[0.1, 0.5, 1].map(share => swatch(`${100 * share} %`, keptShade(share))), gone]
    if (self.data.evidence.length) parts.push(element("span", "swatch evidence", "evidence"))
    return parts
  },
  token(self, token, index, at) {
    const code = self.codes ? self.codes[index] : 0
    token.classList.toggle("gone", code === EVICTED || code === UNSEEN)
    token.classList.toggle("evidence", self.isEvidence(at))
    return self.holders ? keptShade(self.holders[index] / self.data.sets) : 0
  },
  where(self) {
    if (!inWindow(self)) return ""
    const count = self.kept[self.step - self.data.firstStep]
    return ` · ${self.data.place} ${self.data.chooses ? "attends to" : "keeps"} ${whole(count)} of ${whole(positionOf(self) + 1)}`
  },
  words(self, index, at) {
    const { data } = self, code = self.codes[index], gone = self.evictedAt[index]
    if (!code) return " · comes after this step"
    let words = ` · ${data.words[code]}`
    if (code === EVICTED) words += ` ${gone === 0 ? "at the end of prefill" : `after step ${whole(gone)}`}`
    else if (gone <= data.highest) words += `, goes after step ${whole(gone)}`
    words += ` · ${data.chooses ? "attended to" : "kept"} by ${whole(self.holders[index])} of ${counted(data.sets, "head")}`
    const score = self.score[index]
    if (!Number.isNaN(score)) words += ` · score ${short(score)}${self.rank[index] ? `, rank ${whole(self.rank[index])}` : ""}`
    else words += " · not ranked"
    return words + (self.isEvidence(at) ? " · evidence" : "")
  },
  // How much of the evidence lies out of sight, and whether this head still holds it.
  edges(self, side) {
    const counts = [[0, 0], [0, 0]], first = [null, null]
    for (const [start, stop] of self.data.evidence) for (let at = start; at < stop; at++) {
      const where = side(at), index = at - self.data.first
      if (where === null) continue
      counts[where][1]++
      if (!self.tokens[index]) { counts[where][0] = NaN; continue }
      if (self.codes && self.codes[index] !== EVICTED && self.codes[index] !== UNSEEN) counts[where][0]++
      if (first[where] === null) first[where] = index
    }
    return counts.map(([held, all], where) => all === 0 ? null
      : [Number.isNaN(held) ? "the evidence is" : `evidence (${held} of ${counted(all, "token")} kept) is`, first[where]])
  },
  clicked(self, index) {
    const gone = self.evictedAt[index]
    return gone <= self.data.highest && gone !== self.step ? gone : null
  },
}
