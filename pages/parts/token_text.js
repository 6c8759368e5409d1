// The text of a run as tokens, with a look (token_looks.js) for their shades and words.
// Everything the reader typed reaches the page through textContent only.

const FRAME_MS = 220              // one step while playing
const QUIET_MS = 120, IDLE_MS = 400 // what is not on the screen waits until nothing more arrives
const COMMIT_MS = 300             // quiet time before the page is told about a new step
const LOOKS = { attention: ATTENTION, eviction: EVICTION }
const instances = new WeakMap()

const readable = piece => piece === "" ? "(part of the next character)"
  : piece.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣")

function create(root) {
  const self = {
    root, bar: root.querySelector(".bar"), text: root.querySelector(".text"), info: root.querySelector(".info"),
    where: root.querySelector(".where"), legend: root.querySelector(".legend"),
    play: root.querySelector(".play"), back: root.querySelector(".back"), next: root.querySelector(".next"),
    above: root.querySelector(".above"), below: root.querySelector(".below"), mark: root.querySelector(".mark"),
    tokens: [], signature: null, step: 0, cursor: null, marked: null, anchor: null,
    playing: false, timer: null, commitTimer: null, pending: false, send: null, sent: null,
    lines: null, later: 0, idle: 0,
  }
  self.sized = new ResizeObserver(() => { self.lines = null; edges(self) })
  self.sized.observe(self.text)
  document.fonts.ready.then(() => { self.lines = null })
  self.play.onclick = () => toggle(self)
  self.back.onclick = () => { pause(self); move(self, -1) }
  self.next.onclick = () => { pause(self); move(self, 1) }
  self.mark.onclick = () => { if (self.marked) self.send("span", self.marked); select(self, null) }
  self.text.onmousedown = event => { self.anchor = indexOf(event.target) }
  self.text.onmouseup = event => {
    const index = indexOf(event.target)
    select(self, index === null || self.anchor === null || index === self.anchor ? null : [self.anchor, index])
  }
  self.text.onclick = event => {
    const index = indexOf(event.target)
    if (index === null || self.marked) return
    pause(self); self.cursor = index; choose(self, self.look.clicked(self, index))
  }
  self.text.onmouseover = event => {
    const index = indexOf(event.target)
    if (index !== null) describe(self, index)
  }
  self.text.onmouseleave = () => describe(self, self.cursor)
  self.text.onkeydown = event => key(self, event)
  self.text.onscroll = () => edges(self)
  self.above.onclick = () => reveal(self, self.above)
  self.below.onclick = () => reveal(self, self.below)
  return self
}

function indexOf(target) {
  const token = target.closest(".token")
  return token ? Number(token.dataset.index) : null
}

// Tokens of the prompt from one to another are offered as evidence, where the page wants any.
function select(self, ends) {
  const { data } = self
  self.marked = null
  if (ends && data.marks) {
    const [first, last] = [Math.min(...ends), Math.max(...ends)].map(index => data.first + index)
    if (first < data.prompt) self.marked = [first, Math.min(last + 1, data.prompt)]
  }
  self.mark.hidden = !self.marked
  if (self.marked) self.mark.textContent = `Mark ${counted(self.marked[1] - self.marked[0], "token")} as evidence`
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
  self.signature = data.signature
  self.lines = self.cursor = null
  select(self, null)
  const query = self.tokens[positionOf(self) - data.first]
  if (query) self.text.scrollTop = Math.max(0, query.offsetTop - self.text.clientHeight / 2)
}

// What came from the server: at once where it is on the screen, otherwise when nothing else waits.
function refresh(self) {
  const { top, bottom } = self.text.getBoundingClientRect()
  forget(self)
  where(self)
  self.text.toggleAttribute("data-waiting", true)
  if (!self.look.ready(self)) return       // its numbers are on their way
  if (bottom > 0 && top < innerHeight) return paint(self)
  self.later = setTimeout(() => {
    self.idle = requestIdleCallback(() => paint(self), { timeout: IDLE_MS })
  }, QUIET_MS)
}

function forget(self) {
  clearTimeout(self.later)
  cancelIdleCallback(self.idle)
}

function paint(self) {
  const { data } = self, position = positionOf(self)
  forget(self)
  if (self.signature !== data.signature) build(self)
  self.look.start(self)
  self.tokens.forEach((token, index) => {
    const at = data.first + index, shade = self.look.token(self, token, index, at)
    token.style.backgroundColor = shade > 0.01 ? `rgba(var(--shade), ${shade.toFixed(3)})` : ""
    token.classList.toggle("future", at > position)
    token.classList.toggle("query", at === position)
  })
  where(self)
  edges(self)
  describe(self, self.cursor)
  self.text.toggleAttribute("data-waiting", false)
}

function where(self) {
  const { data } = self, position = positionOf(self), last = data.length - data.prompt
  self.where.textContent = (self.step > 0
    ? `Step ${whole(self.step)} of ${whole(last)}, position ${whole(position)}`
    : data.lowest === 0 ? `Step 0 of ${whole(last)}, the end of prefill`
    : `Step ${whole(self.step)} (prompt token at position ${whole(position)})`) + self.look.where(self)
  self.back.disabled = self.step <= data.lowest
  self.next.disabled = self.step >= data.highest
}

// What the look finds worth telling of tokens above and below what is in sight.
function edges(self) {
  const { data, text } = self, top = text.scrollTop, bottom = top + text.clientHeight
  self.lines ??= self.tokens.map(({ offsetTop, offsetHeight }) => [offsetTop, offsetTop + offsetHeight])
  const side = at => {
    const index = at - data.first, line = self.lines[index]
    return index < 0 || (line && line[1] <= top) ? 0 : !line || line[0] >= bottom ? 1 : null
  }
  const told = self.look.edges(self, side)
  for (const [which, button, arrow, where] of [[0, self.above, "▲", "above"], [1, self.below, "▼", "below"]]) {
    button.hidden = told[which] === null
    if (button.hidden) continue
    button.textContent = `${arrow} ${told[which][0]} ${where}`
    button.target = told[which][1]
    button.disabled = button.target === null   // it lies on another page of the text
  }
}

function reveal(self, button) {
  if (button.target === null || !self.tokens[button.target]) return
  self.tokens[button.target].scrollIntoView({ block: "center", inline: "nearest" })
  describe(self, button.target)
}

function describe(self, index) {
  const { data, info } = self
  info.replaceChildren()
  if (index === null || index === undefined || !self.tokens[index]) {
    info.append(element("span", "quiet", self.look.help + (data.marks ? " Drag over tokens of the prompt to mark evidence." : "")))
    return
  }
  const at = data.first + index
  info.append(element("span", "name", readable(data.pieces[index])))
  const known = self.look.ready(self) ? self.look.words(self, index, at) : ""
  info.append(document.createTextNode(`  position ${whole(at)} · token id ${self.ids[index]}${known}`))
}

function choose(self, step) {
  const { data } = self
  if (step === null) return describe(self, self.cursor)
  self.step = Math.min(data.highest, Math.max(Math.min(data.lowest, step), step))
  if (self.look.ready(self)) paint(self)
  commit(self)
}

function move(self, by) {
  const target = self.step + by
  if (target < Math.min(self.data.lowest, self.step) || target > self.data.highest) return false
  self.step = target
  const ready = self.look.ready(self)
  if (ready) paint(self)
  if (!self.playing || !ready) commit(self)
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
    if (!self.look.ready(self)) return     // the next window of steps is on its way
    if (!move(self, 1)) pause(self)
  }, FRAME_MS)
}

function key(self, event) {
  const last = self.tokens.length - 1, before = self.cursor
  const places = { ArrowLeft: -1, ArrowRight: 1 }
  if (event.key in places) self.cursor = Math.min(last, Math.max(0, (self.cursor ?? Math.min(last, positionOf(self) - self.data.first)) + places[event.key]))
  else if (event.key === "Home") self.cursor = 0
  else if (event.key === "End") self.cursor = last
  else if (event.key === "ArrowUp") { pause(self); move(self, -1) }
  else if (event.key === "ArrowDown") { pause(self); move(self, 1) }
  else if (event.key === "Enter" && self.marked) self.mark.onclick()
  else if (event.key === "Enter" && self.cursor !== null) { pause(self); choose(self, self.look.clicked(self, self.cursor)) }
  else if (event.key === " ") toggle(self)
  else return
  event.preventDefault()
  if (self.cursor !== before) {            // Shift extends a selection of tokens from where it began
    if (!event.shiftKey) self.anchor = null
    else self.anchor ??= before ?? self.cursor
    select(self, event.shiftKey && self.anchor !== self.cursor ? [self.anchor, self.cursor] : null)
  }
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
  self.look = LOOKS[data.look]
  root.classList.toggle("dark", data.dark)
  root.classList.toggle("eviction", data.look === "eviction")
  self.text.setAttribute("aria-label", data.alt)
  self.look.read(self, () => refresh(self))
  self.ids = new Int32Array(bytes(data.ids))
  if (!self.pending && (!self.playing || !inWindow(self))) self.step = data.step
  if (!self.signature) build(self)         // at once: it takes its place on the page
  self.legend.replaceChildren(...self.look.legend(self))
  refresh(self)
  return () => {
    clearInterval(self.timer)
    clearTimeout(self.commitTimer)
    forget(self)
    self.sized.disconnect()
    instances.delete(root)
  }
}
