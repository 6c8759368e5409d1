// The texts of the groups of queries: a token and its point on the map light up together.
// Everything the reader typed reaches the page through textContent only.

const SVG = "http://www.w3.org/2000/svg"
const RING_RADIUS = 10
const instances = new WeakMap()

const readable = piece => piece === "" ? "(part of the next character)"
  : piece.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣")
const whole = value => value.toLocaleString("en-US")

function element(tag, className, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined) node.textContent = text
  return node
}

function create(root) {
  const self = {
    root, text: root.querySelector(".text"), info: root.querySelector(".info"),
    tokens: [], lit: null, ring: null, map: null, signature: null,
  }
  const indexOf = target => target.closest(".token")?.dataset.index
  self.text.onmouseover = event => {
    const index = indexOf(event.target)
    if (index !== undefined) light(self, Number(index), true)
  }
  self.text.onmouseleave = () => light(self, null)
  self.text.onblur = () => light(self, null)
  self.text.onkeydown = event => {
    const last = self.tokens.length - 1
    const places = { ArrowRight: (self.lit ?? -1) + 1, ArrowLeft: (self.lit ?? 1) - 1, Home: 0, End: last }
    if (!(event.key in places)) return
    event.preventDefault()
    light(self, Math.min(last, Math.max(0, places[event.key])), true)
    reveal(self)
  }
  // The map is drawn and redrawn by the page; whoever points at it finds it as it is now.
  self.watch = event => { if (event.target.closest?.(self.chart)) hook(self) }
  document.addEventListener("pointerover", self.watch)
  return self
}

function build(self, groups) {
  self.text.replaceChildren()
  self.tokens = []
  for (const group of groups) {
    const count = group.pieces.length
    const head = element("div", "group")
    head.append(element("b", "", group.name), element("span", "quiet", ` · ${whole(count)} ${count === 1 ? "token" : "tokens"}`))
    const body = element("div", "said")
    if (!count) body.append(element("span", "quiet", "Nothing was generated in this run."))
    group.pieces.forEach((piece, at) => {
      const token = element("span", "token", piece)
      if (piece === "") token.classList.add("hollow")
      else if (/^\n+$/.test(piece)) token.classList.add("line")
      token.dataset.index = self.tokens.length
      self.tokens.push({ node: token, piece, group: group.name, position: group.positions[at], point: group.points[at] })
      body.append(token)
    })
    self.text.append(head, body)
  }
}

function pointOf(self, [curve, number]) {
  const traces = document.querySelector(self.chart)?.querySelectorAll(".scatterlayer .trace")
  return traces?.[curve]?.querySelectorAll("path.point")[number] ?? null
}

function light(self, index, fromText = false) {
  self.ring?.remove()
  self.ring = null
  if (self.lit !== null) self.tokens[self.lit]?.node.classList.remove("cursor")
  self.lit = index
  self.info.replaceChildren()
  const token = index === null ? null : self.tokens[index]
  if (!token) {
    self.info.append(element("span", "quiet", "Point at a token, or at a point of the map: both light up."))
    return
  }
  token.node.classList.add("cursor")
  self.info.append(element("span", "name", readable(token.piece)))
  self.info.append(document.createTextNode(`  ${token.group} · position ${whole(token.position)}`))
  const point = fromText ? pointOf(self, token.point) : null
  if (!point) return
  self.ring = document.createElementNS(SVG, "circle")
  self.ring.setAttribute("class", "kvscope-ring")
  self.ring.setAttribute("r", RING_RADIUS)
  self.ring.setAttribute("transform", point.getAttribute("transform"))
  self.ring.setAttribute("style", "fill:none;stroke:#E3342F;stroke-width:3px;pointer-events:none")
  point.closest(".scatterlayer").append(self.ring)
}

function reveal(self) {
  const node = self.tokens[self.lit]?.node, frame = self.text
  if (!node) return
  const top = node.offsetTop - frame.offsetTop
  if (top < frame.scrollTop || top + node.offsetHeight > frame.scrollTop + frame.clientHeight) {
    frame.scrollTop = Math.max(0, top - frame.clientHeight / 2)
  }
}

function hook(self) {
  const map = document.querySelector(self.chart)
  if (!map || map === self.map || !map.on) return
  self.map = map
  map.on("plotly_hover", event => {
    const { curveNumber, pointNumber } = event.points[0]
    const index = self.tokens.findIndex(({ point }) => point[0] === curveNumber && point[1] === pointNumber)
    if (index >= 0) { light(self, index); reveal(self) }
  })
  map.on("plotly_unhover", () => light(self, null))
}

export default function (component) {
  const { data, parentElement } = component
  const root = parentElement.querySelector(".kv")
  if (!root || !data) return
  let self = instances.get(root)
  if (!self) { self = create(root); instances.set(root, self) }
  self.chart = data.chart
  root.classList.toggle("dark", data.dark)
  self.text.setAttribute("aria-label", data.alt)
  const signature = JSON.stringify(data.groups)
  if (signature !== self.signature) { self.signature = signature; build(self, data.groups) }
  light(self, null)
  hook(self)
  return () => {
    document.removeEventListener("pointerover", self.watch)
    self.ring?.remove()
    instances.delete(root)
  }
}
