// The text of a run with one query's attention as the shade of each token.
// Everything the reader typed reaches the page through textContent only.

const FULL_SHADE = 0.5            // the weight that gets the full shade
const LOG_FLOOR = 1e-3            // with logarithmic shades, the weight that gets none
const FRAME_MS = 220              // one step while playing
const COMMIT_MS = 300             // quiet time before the page is told about a new step
const EDGE_MASS = 0.02            // attention out of sight that is worth a mark at the edge
const instances = new WeakMap()

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

const readable = piece => piece === "" ? "(part of the next character)"
  : piece.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣")

function create(root) {
  const self = {
    root, bar: root.querySelector(".bar"), text: root.querySelector(".text"), info: root.querySelector(".info"),
    where: root.querySelector(".where"), legend: root.querySelector(".legend"),
    play: root.querySelector(".play"), back: root.querySelector(".back"), next: root.querySelector(".next"),
    above: root.querySelector(".above"), below: root.querySelector(".below"),
    tokens: [], signature: null, step: 0, cursor: null, playing: false, timer: null, commitTimer: null, pending: false, send: null,
  }
  self.play.onclick = () => toggle(self)
  self.back.onclick = () => { pause(self); move(self, -1) }
  self.next.onclick = () => { pause(self); move(self, 1) }
  self.text.onclick = event => {
    const token = event.target.closest(".token")
    if (token) { pause(self); self.cursor = Number(token.dataset.index); choose(self, stepAt(self, self.cursor)) }
  }
  self.text.onmouseover = event => {
    const token = event.target.closest(".token")
    if (token) describe(self, Number(token.dataset.index))
  }
  self.text.onmouseleave = () => describe(self, self.cursor)
  self.text.onkeydown = event => key(self, event)
  self.text.onscroll = () => edges(self)
  self.above.onclick = () => reveal(self, self.above)
  self.below.onclick = () => reveal(self, self.below)
  return self
}

const stepAt = (self, index) => self.data.first + index - self.data.prompt + 1
const positionOf = self => self.step + self.data.prompt - 1

function rowOf(self) {
  const index = self.step - self.data.firstStep
  if (index < 0 || index >= self.data.count) return null
  return self.rows.subarray(index * self.data.length, (index + 1) * self.data.length)
}

function build(self) {
  const { data } = self
  self.text.replaceChildren()
  const part = document.createDocumentFragment()
  const starts = new Map(data.segments.map(([name, first]) => [first, name]))
  self.tokens = data.pieces.map((piece, index) => {
    const name = starts.get(data.first + index)
    if (name && (index > 0 || data.first > 0)) {
      const rule = element("div", name === "response" ? "rule" : "rule light")
      rule.append(element("span", "quiet", name))
      part.append(rule)
    }
    const token = element("span", "token", piece)
    token.dataset.index = index
    if (piece === "") token.classList.add("hollow")
    else if (/^\n+$/.test(piece)) token.classList.add("line")
    else if (/^[ \t]+$/.test(piece)) token.classList.add("blank")
    part.append(token)
    return token
  })
  self.text.append(part)
  self.cursor = null
}

function legend(self) {
  self.legend.replaceChildren(element("span", "quiet", "attention"))
  for (const weight of self.data.log ? [0.003, 0.01, 0.1, 1] : [0.01, 0.05, 0.2, 0.5]) {
    const swatch = element("span", "swatch", (weight === FULL_SHADE ? "≥ " : "") + weight)
    swatch.style.backgroundColor = `rgba(var(--shade), ${shadeOf(weight, self.data.log)})`
    self.legend.append(swatch)
  }
}

function paint(self) {
  const { data } = self, row = rowOf(self), position = positionOf(self)
  self.tokens.forEach((token, index) => {
    const at = data.first + index
    const weight = row && !(data.hideSink && at < data.sink) ? row[at] : 0
    const shade = shadeOf(weight, data.log)
    token.style.backgroundColor = shade > 0.01 ? `rgba(var(--shade), ${shade.toFixed(3)})` : ""
    token.classList.toggle("future", at > position)
    token.classList.toggle("query", at === position)
  })
  const last = data.length - data.prompt
  self.where.textContent = self.step > 0
    ? `Step ${whole(self.step)} of ${whole(last)}, position ${whole(position)}`
    : `Step ${whole(self.step)} (prompt token at position ${whole(position)})`
  edges(self)
  self.back.disabled = self.step <= data.lowest
  self.next.disabled = self.step >= data.highest
  describe(self, self.cursor)
}

// How much attention lies above and below what is in sight; a click goes to its largest weight.
function edges(self) {
  const { data, text } = self, row = rowOf(self)
  const sums = [0, 0], best = [null, null]
  if (row) {
    const top = text.scrollTop, bottom = top + text.clientHeight
    for (let at = data.hideSink ? data.sink : 0; at <= positionOf(self); at++) {
      const index = at - data.first, token = self.tokens[index]
      const side = index < 0 || (token && token.offsetTop + token.offsetHeight <= top) ? 0
        : !token || token.offsetTop >= bottom ? 1 : null
      if (side === null || !(row[at] > 0)) continue
      sums[side] += row[at]
      if (token && (best[side] === null || row[at] > row[data.first + best[side]])) best[side] = index
    }
  }
  for (const [side, button, arrow, where] of [[0, self.above, "▲", "above"], [1, self.below, "▼", "below"]]) {
    button.hidden = sums[side] < EDGE_MASS
    button.textContent = `${arrow} ${sums[side].toFixed(2)} of the attention is ${where}`
    button.target = best[side]
    button.disabled = best[side] === null   // it lies on another page of the text
  }
}

function reveal(self, button) {
  if (button.target === null || !self.tokens[button.target]) return
  self.tokens[button.target].scrollIntoView({ block: "center", inline: "nearest" })
  describe(self, button.target)
}

function describe(self, index) {
  const { data } = self, info = self.info
  info.replaceChildren()
  if (index === null || index === undefined || !self.tokens[index]) {
    info.append(element("span", "quiet", "Point at a token for its weight; click it to look from there. Arrow keys move, Enter looks, ↑ ↓ change the step, space plays."))
    return
  }
  const at = data.first + index, row = rowOf(self)
  info.append(element("span", "name", readable(data.pieces[index])))
  let words = `  position ${whole(at)} · token id ${self.ids[index]}`
  if (at > positionOf(self)) words += " · comes after this step"
  else if (row) {
    let rank = 1
    const weight = row[at]
    for (let i = 0; i < row.length; i++) if (row[i] > weight) rank++
    words += ` · weight ${weightText(weight)} · rank ${whole(rank)} of ${whole(positionOf(self) + 1)}`
  }
  info.append(document.createTextNode(words))
}

function choose(self, step) {
  const { data } = self
  self.step = Math.min(data.highest, Math.max(Math.min(data.lowest, step), step))
  if (rowOf(self)) paint(self)
  commit(self)
}

function move(self, by) {
  const target = self.step + by
  if (target < Math.min(self.data.lowest, self.step) || target > self.data.highest) return false
  self.step = target
  if (rowOf(self)) paint(self)
  if (!self.playing || !rowOf(self)) commit(self)
  return true
}

function commit(self) {
  clearTimeout(self.commitTimer)
  self.pending = true
  self.commitTimer = setTimeout(() => { self.pending = false; self.send("step", self.step) }, COMMIT_MS)
}

function pause(self) {
  if (!self.playing) return
  self.playing = false
  clearInterval(self.timer)
  self.play.textContent = "▶"
  self.play.setAttribute("aria-label", "Play over the steps")
  commit(self)
}

function toggle(self) {
  if (self.playing) return pause(self)
  if (self.step >= self.data.highest) self.step = Math.max(self.data.lowest, Math.min(1, self.data.highest))
  self.playing = true
  self.play.textContent = "⏸"
  self.play.setAttribute("aria-label", "Pause")
  self.timer = setInterval(() => {
    if (!rowOf(self)) return               // the next window of steps is on its way
    if (!move(self, 1)) pause(self)
  }, FRAME_MS)
}

function key(self, event) {
  const last = self.tokens.length - 1
  const places = { ArrowLeft: -1, ArrowRight: 1 }
  if (event.key in places) self.cursor = Math.min(last, Math.max(0, (self.cursor ?? Math.min(last, positionOf(self) - self.data.first)) + places[event.key]))
  else if (event.key === "Home") self.cursor = 0
  else if (event.key === "End") self.cursor = last
  else if (event.key === "ArrowUp") { pause(self); move(self, -1) }
  else if (event.key === "ArrowDown") { pause(self); move(self, 1) }
  else if (event.key === "Enter" && self.cursor !== null) { pause(self); choose(self, stepAt(self, self.cursor)) }
  else if (event.key === " ") toggle(self)
  else return
  event.preventDefault()
  self.tokens.forEach((token, index) => token.classList.toggle("cursor", index === self.cursor))
  if (self.cursor !== null) {
    self.tokens[self.cursor].scrollIntoView({ block: "nearest" })
    describe(self, self.cursor)
  }
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const root = parentElement.querySelector(".kv")
  if (!root || !data) return
  let self = instances.get(root)
  if (!self) { self = create(root); instances.set(root, self) }
  self.send = setTriggerValue
  self.data = data
  root.classList.toggle("dark", data.dark)
  self.text.setAttribute("aria-label", data.alt)
  self.rows = Float32Array.from(new Uint16Array(bytes(data.rows)), bits => HALF[bits])
  self.ids = new Int32Array(bytes(data.ids))
  if (!self.pending && (!self.playing || !rowOf(self))) self.step = data.step
  const fresh = self.signature !== data.signature
  if (fresh) { self.signature = data.signature; build(self) }
  legend(self)
  paint(self)
  const query = self.tokens[positionOf(self) - data.first]
  if (fresh && query) {
    const text = self.text
    text.scrollTop = Math.max(0, query.offsetTop - text.clientHeight / 2)
  }
  edges(self)
  return () => { clearInterval(self.timer); clearTimeout(self.commitTimer); instances.delete(root) }
}
