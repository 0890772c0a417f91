(() => {
  const wrong = [];
  const name = (element) => element.tagName.toLowerCase() + (element.id ? `#${element.id}` : "") +
    (typeof element.className === "string" && element.className ? `.${element.className}` : "");
  const shown = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility === "visible";
  const hidden = (element) => element.closest("thead, title, head") !== null && getComputedStyle(element.closest("thead") ?? element).position === "absolute";

  // Layout: nothing is wider than the screen, and no text is cut off.
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wrong.push(`the page is wider than the screen: ${document.documentElement.scrollWidth} > ${width}`);
  for (const element of document.body.querySelectorAll("*")) {
    if (!shown(element) || hidden(element)) continue;
    const box = element.getBoundingClientRect();
    if (box.right > width + 1 || box.left < -1) wrong.push(`${name(element)} is wider than the screen: ${box.left} to ${box.right}`);
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && !element.closest("svg")) {
      wrong.push(`the content of ${name(element)} overflows: ${element.scrollWidth} > ${element.clientWidth}`);
    }
  }

  // Contrast: 4.5 for text, 3 for large text (WCAG 2.2, 1.4.3).
  const color = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const over = (front, back) => { const a = front[3] ?? 1; return [0, 1, 2].map((i) => front[i] * a + back[i] * (1 - a)); };
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(color(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !shown(element) || hidden(element) || element.tagName === "title") continue;
    const style = getComputedStyle(element);
    const inSvg = element instanceof SVGElement;
    let back = background(element);
    if (inSvg) {
      const rect = element.parentElement.querySelector("rect");
      back = over(color(getComputedStyle(rect).fill), back);
    }
    const [one, other] = [light(over(color(inSvg ? style.fill : style.color), back)), light(back)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : 4.5)) wrong.push(`${name(element)} has a contrast of ${contrast.toFixed(2)}: ${texts.currentNode.data.trim().slice(0, 40)}`);
    if (!inSvg && size < 12) wrong.push(`${name(element)} has a font of ${size}px`);
  }

  // Structure: headers of tables, names of drawings, one title, words next to every symbol.
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption && !table.hasAttribute("aria-labelledby")) wrong.push(`${name(table)} has no name`);
    if (table.tHead && [...table.tHead.rows[0].cells].some((cell) => cell.scope !== "col")) wrong.push("a table has no column headers");
    if (!table.tHead && !table.caption) wrong.push("a table has no column headers");
    for (const row of table.tBodies[0].rows) {
      if (row.cells[0].tagName !== "TH" || row.cells[0].scope !== "row") wrong.push(`a row has no header: ${row.innerText}`);
    }
  }
  for (const drawing of document.querySelectorAll("svg")) {
    if (drawing.getAttribute("role") !== "img" || !drawing.getAttribute("aria-label")) wrong.push(`${name(drawing)} has no name`);
  }
  for (const section of document.querySelectorAll("main section")) {
    const label = section.getAttribute("aria-labelledby");
    if (!section.getAttribute("aria-label") && !(label && document.getElementById(label))) wrong.push(`${name(section)} has no name`);
  }
  if (document.querySelectorAll("h1").length !== 1) wrong.push("the page does not have one h1");
  if (!document.documentElement.lang || !document.title) wrong.push("the page has no language or no title");
  const state = document.querySelector(".verdict .state");
  if (!/healthy|behind|not relaying|unknown/.test(state.innerText.toLowerCase())) wrong.push("the verdict is not in words");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) wrong.push("two elements have the same id");
  return wrong;
})()
