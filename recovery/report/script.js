// Shows the label under the pointer; a table has all labels as well.
(() => {
  const tip = document.getElementById("tip");
  const hide = () => { tip.style.display = "none"; };
  document.querySelectorAll("[data-t] > title").forEach((title) => title.remove());
  const show = (event) => {
    const over = event.target.closest && event.target.closest("[data-t]");
    if (!over) { hide(); return; }
    tip.textContent = over.dataset.t;
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, event.clientX - box.width / 2), innerWidth - box.width - 8);
    const above = event.clientY - box.height - 14;
    tip.style.left = left + "px";
    tip.style.top = (above > 8 ? above : event.clientY + 18) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("pointerleave", hide);
})();
