"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const root = document.documentElement;
function seconds(v) {
  if (v === 0) return "0";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
    if (v >= scale) return (v / scale).toPrecision(4) + " " + unit;
  return (v / 1e-9).toPrecision(4) + " ns";
}
function say(event, text) {
  tip.style.display = text ? "block" : "none";
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
}

// ---- timeline: bars of three rows, and utilisations below; the wheel zooms, dragging pans
const canvas = document.getElementById("timeline");
const whole = data.report.time_s || 1;
let from = 0, to = whole, hits = [];
const ROW = 26, CHART = 60, NAMES = ["HBM", "network", "execute"];
function css(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }
function visit(number, offset, draw, scale) {
  const frame = data.timeline.frames[number], s = frame.s;
  for (let k = 0; k < s.length; k += 6)
    if (offset + s[k + 4] >= from && offset + s[k + 3] <= to) draw(s, k, offset);
  for (const [start, count, period, inner] of frame.i) {
    const base = offset + start, first = Math.max(0, Math.floor((from - base) / (period || 1)));
    // Passes narrower than a pixel are drawn once a pixel.
    const step = Math.max(1, Math.floor(1 / Math.max(1e-12, period * scale)));
    for (let i = first; i < count && base + i * period <= to; i += step)
      visit(inner, base + i * period, draw, scale);
  }
}
function draw() {
  const dpr = devicePixelRatio || 1, width = canvas.clientWidth, height = 3 * ROW + CHART + 22;
  canvas.style.height = height + "px";
  canvas.width = width * dpr; canvas.height = height * dpr;
  const g = canvas.getContext("2d");
  g.scale(dpr, dpr);
  g.fillStyle = css("--panel"); g.fillRect(0, 0, width, height);
  const left = 64, scale = (width - left) / (to - from), X = t => left + (t - from) * scale;
  hits = [];
  g.save(); g.beginPath(); g.rect(left, 0, width - left, height); g.clip();
  const dark = getComputedStyle(root).colorScheme === "dark", names = data.timeline.names;
  g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
  visit(0, 0, (s, k, offset) => {
    const track = s[k], x = X(offset + s[k + 3]), w = Math.max(.6, (s[k + 4] - s[k + 3]) * scale);
    const y = track * ROW + 4, name = names[s[k + 1]];
    g.fillStyle = `hsl(${data.timeline.hues[s[k + 1]]} 55% ${dark ? 45 : 62}%)`;
    g.fillRect(x, y, w, ROW - 6);
    if (w > 40) {
      g.fillStyle = dark ? "#fff" : "#111";
      g.fillText(name.slice(0, Math.floor(w / 6.2)), Math.max(x, left) + 3, y + ROW / 2 - 3);
    }
    hits.push([x, x + w, y, y + ROW - 6, s, k, offset]);
  }, scale);
  const u = data.usage, top = 3 * ROW + 6;
  for (const [field, color] of [["compute", "--execute"], ["network", "--network"], ["hbm", "--hbm"]]) {
    g.strokeStyle = css(color); g.lineWidth = 1.2; g.beginPath();
    u[field].forEach((v, i) => {
      const y = top + CHART * (1 - Math.min(1, v));
      g.lineTo(X(i * u.step_s), y); g.lineTo(X((i + 1) * u.step_s), y);
    });
    g.stroke();
  }
  g.restore();
  g.fillStyle = css("--soft"); g.textBaseline = "middle";
  NAMES.forEach((n, i) => g.fillText(n, 6, i * ROW + ROW / 2 + 1));
  g.fillText("100 %", 6, top + 5); g.fillText("0 %", 6, top + CHART - 4);
  for (let i = 0; i <= 6; i++) {
    const t = from + (to - from) * i / 6;
    g.textAlign = i === 6 ? "right" : i ? "center" : "left";
    g.fillText(seconds(t), X(t), height - 9);
  }
  g.textAlign = "left";
}
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const r = canvas.getBoundingClientRect(), share = Math.max(0, (event.clientX - r.left - 64) / (r.width - 64));
  const at = from + share * (to - from), f = Math.exp(event.deltaY * .0015);
  const span = Math.min(whole, Math.max(whole * 1e-7, (to - from) * f));
  from = Math.min(Math.max(0, at - share * span), whole - span); to = from + span;
  draw();
}, { passive: false });
let grabbed = null;
canvas.addEventListener("pointerdown", e => { grabbed = [e.clientX, from, to]; canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener("pointerup", () => { grabbed = null; });
canvas.addEventListener("dblclick", () => { from = 0; to = whole; draw(); });
canvas.addEventListener("pointerleave", e => say(e, ""));
canvas.addEventListener("pointermove", event => {
  const r = canvas.getBoundingClientRect();
  if (grabbed) {
    const span = grabbed[2] - grabbed[1], shift = (grabbed[0] - event.clientX) * span / (r.width - 64);
    from = Math.min(Math.max(0, grabbed[1] + shift), whole - span); to = from + span;
    draw(); return;
  }
  const x = event.clientX - r.left, y = event.clientY - r.top, names = data.timeline.names;
  const hit = hits.filter(h => x >= h[0] && x <= h[1] && y >= h[2] && y <= h[3]).pop();
  if (!hit) { say(event, ""); return; }
  const [, , , , s, k, offset] = hit, detail = names[s[k + 5]];
  say(event, `${names[s[k + 1]]}\n${names[s[k + 2]]}\n${seconds(s[k + 4] - s[k + 3])} from `
    + seconds(offset + s[k + 3]) + (detail ? `\nbounded by ${detail}` : ""));
});
addEventListener("resize", draw);
draw();

// ---- SRAM map: the titles of its rectangles at once, without a browser's delay
document.querySelectorAll("svg rect.b").forEach(rect => {
  const text = rect.querySelector("title").textContent;
  rect.addEventListener("pointermove", e => say(e, text));
  rect.addEventListener("pointerleave", e => say(e, ""));
});

// ---- tables: sort by a column, filter by a text
document.querySelectorAll("table.sort").forEach(table => {
  table.querySelectorAll("th").forEach((th, i) => th.addEventListener("click", () => {
    const body = table.tBodies[0], down = th.dataset.down !== "1";
    th.dataset.down = down ? "1" : "";
    const value = row => row.cells[i].dataset.value ?? row.cells[i].textContent;
    [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b), both = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
      const order = both ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    }).forEach(row => body.append(row));
  }));
});
document.querySelectorAll("input.filter").forEach(input => input.addEventListener("input", () => {
  const wanted = input.value.toLowerCase();
  for (const row of document.getElementById(input.dataset.table).tBodies[0].rows)
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
}));
document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  draw();
});
root.dataset.ready = "1";
