(() => {
  // A line under the pointer, with the time there and what the mark says. Without this script the
  // page shows the same.
  const area = document.querySelector("[data-from]");
  const out = document.getElementById("at");
  if (!area || !out) return;
  const from = Number(area.dataset.from), to = Number(area.dataset.to), idle = out.textContent;
  const line = document.createElement("div");
  line.className = "cursor";
  area.append(line);
  const leave = () => { line.style.display = "none"; out.textContent = idle; };
  area.addEventListener("pointermove", e => {
    const svg = area.querySelector("svg").getBoundingClientRect();
    const share = (e.clientX - svg.left) / svg.width;
    if (share < 0 || share > 1) return leave();
    const mark = e.target.closest("path");
    const title = mark && mark.querySelector("title");
    const when = new Date(from + share * (to - from)).toISOString().replace("T", " ").slice(0, 19);
    out.textContent = when + " UTC" + (title ? " · " + title.textContent : "");
    line.style.display = "block";
    line.style.left = e.clientX - area.getBoundingClientRect().left + "px";
  });
  area.addEventListener("pointerleave", leave);
})();
