// A Plotly figure that stays where it is: what changed is drawn over what was there, once, and what
// is on the screen before what is not. Streamlit's own chart is made anew, and drawn twice, whenever
// a number changes.

const instances = new WeakMap()
const waiting = new Set() // not drawn yet as last told
const QUIET_MS = 120 // what is not on the screen waits until nothing more arrives
const GROW = {
  width: 448, height: 512,
  path: "M0 32h160v64H64v96H0zM288 32h160v160h-64V96h-96zM0 320h64v96h96v64H0zM384 320h64v160H288v-64h96z",
}

let library = null
function load(address) {
  return library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script")
    script.src = new URL(address, document.baseURI)
    script.onload = () => resolve(window.Plotly)
    script.onerror = () => { library = null; reject(new Error("the drawing library did not arrive")) }
    document.head.append(script)
  })
}

function onScreen({ host }) {
  const { top, bottom } = host.getBoundingClientRect()
  return bottom > 0 && top < innerHeight
}

let soon = 0, later = 0, idle = 0
function ask() {
  clearTimeout(later)
  if (!waiting.size) return
  if ([...waiting].some(onScreen)) soon ||= setTimeout(next, 0)
  else later = setTimeout(() => { idle ||= requestIdleCallback(next, { timeout: 400 }) }, QUIET_MS)
}

function next() {
  clearTimeout(soon)
  cancelIdleCallback(idle)
  soon = idle = 0
  const all = [...waiting]
  const self = all.find(onScreen) ?? all[0]
  if (!self) return
  waiting.delete(self)
  try { draw(self) } finally { ask() } // one that fails keeps no other waiting
}

// The choice of the reader alone is a line that moves; everything else is for Plotly to compare.
function draw(self) {
  const { told, drawn, host } = self
  const { Plotly } = window
  const shapes = JSON.parse(told.shapes)
  if (drawn && same(drawn, told) && drawn.layout === told.layout && drawn.height === told.height) {
    if (drawn.shapes !== told.shapes) Plotly.relayout(host, { shapes })
  } else {
    host.style.height = `${told.height}px`
    if (!drawn) host.replaceChildren() // why it could not be drawn, where it could not
    const layout = { ...JSON.parse(told.layout), shapes, autosize: true }
    Plotly.react(host, spelledOut(JSON.parse(told.address ? self.fetched : told.traces)), layout, self.options)
    if (!drawn) listen(self)
  }
  self.drawn = told
  host.toggleAttribute("data-waiting", false)
}

const same = (a, b) => a.address === b.address && a.traces === b.traces

// Many numbers are fetched, and only once as long as they stay the same.
async function fetchTraces(self, { address }) {
  if (!address || address === self.address) return
  const answer = await fetch(new URL(address, document.baseURI))
  if (!answer.ok) throw new Error("its numbers did not arrive")
  const text = await answer.text()
  if (self.told.address === address) Object.assign(self, { address, fetched: text })
}

// The cells of a raster are sent as numbers, and once what each number means.
function spelledOut(traces) {
  for (const trace of traces) {
    const words = trace.meta?.words
    if (!words) continue
    const columns = Number(trace.z.shape.split(",")[1])
    const cells = Uint8Array.from(atob(trace.z.bdata), byte => byte.charCodeAt(0))
    trace.hovertext = []
    for (let start = 0; start < cells.length; start += columns) {
      trace.hovertext.push(Array.from(cells.subarray(start, start + columns), cell => words[cell]))
    }
  }
  return traces
}

function options(self) {
  return {
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendDataToCloud"],
    modeBarButtonsToAdd: [{ name: "fullscreen", title: "Full screen", icon: GROW, click: () => grow(self) }],
  }
}

function grow({ host }) {
  if (document.fullscreenElement) document.exitFullscreen()
  else host.requestFullscreen()
}

function listen(self) {
  self.host.on("plotly_click", ({ points: [point] }) => {
    if (self.told.clicks && point) self.tell("point", { x: point.x, y: point.y })
  })
}

function fail(self, error) {
  if (self.drawn) window.Plotly.purge(self.host)
  self.drawn = null
  self.host.toggleAttribute("data-waiting", false)
  self.host.textContent = `This figure cannot be drawn: ${error.message}. Reload the page.`
}

function create(host) {
  const self = { host, told: null, drawn: null, address: null, fetched: null, width: 0, height: 0 }
  self.options = options(self) // one object: Plotly begins anew where another one comes
  self.sized = new ResizeObserver(([{ contentRect: { width, height } }]) => {
    if (!self.drawn || !width || (width === self.width && height === self.height)) return
    Object.assign(self, { width, height })
    window.Plotly.Plots.resize(host)
  })
  self.sized.observe(host)
  return self
}

export default function ({ data, parentElement, setTriggerValue }) {
  const host = parentElement.querySelector(".kv-plot")
  if (!host || !data) return
  let self = instances.get(host)
  if (!self) { self = create(host); instances.set(host, self) }
  host.setAttribute("aria-label", data.alt)
  if (!self.drawn) host.style.height = `${data.height}px`
  waiting.delete(self)
  self.told = data
  self.tell = setTriggerValue
  host.toggleAttribute("data-waiting", true)
  Promise.all([load(data.library), fetchTraces(self, data)]).then(
    () => { if (instances.get(host) === self && self.told === data) { waiting.add(self); ask() } },
    error => { if (self.told === data) fail(self, error) },
  )
  return () => {
    instances.delete(host)
    waiting.delete(self)
    self.sized.disconnect()
    if (self.drawn) window.Plotly.purge(host)
  }
}
