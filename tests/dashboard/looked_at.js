// Checks that run inside a page; each function returns the faults as text.

const shortly = (element) => element.outerHTML.slice(0, 120);

// Elements that are wider than the window and not in a scrolling container.
function overflow() {
  const wide = innerWidth + 1;
  const scrolls = '.scroll, nav, .plot, .rows, pre, .unseen';
  const outside = [...document.querySelectorAll('body *')].filter((each) => {
    const { width, left, right } = each.getBoundingClientRect();
    return width && (right > wide || left < -1) && !each.parentElement.closest(scrolls)
      && !each.matches('.unseen, .skip');
  });
  const page = document.documentElement.scrollWidth;
  return [...(page > wide ? [`the page has ${page} pixels`] : []), ...outside.map(shortly)];
}

const pixel = Object.assign(document.createElement('canvas'), { width: 1, height: 1 })
  .getContext('2d', { willReadFrequently: true });

function rgba(colour) {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}

const over = ([r, g, b, a], under) => [r, g, b].map((each, at) => a * each + (1 - a) * under[at]);

function behind(element) {
  if (!element) return [255, 255, 255];
  const own = rgba(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
}

// Relative luminance and contrast of two colours, WCAG 2.2.
const luminance = (rgb) => rgb
  .map((each) => each / 255)
  .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
  .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function* texts() {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const read = element.checkVisibility() && !element.closest('.unseen, svg, option, noscript');
    if (walk.currentNode.data.trim() && read) yield element;
  }
}

// Text with a contrast below 4.5 : 1, and line colors below 3 : 1.
function faint() {
  const found = [];
  for (const element of texts()) {
    const back = behind(element);
    const ratio = contrast(over(rgba(getComputedStyle(element).color), back), back);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${shortly(element)}`);
  }
  const panel = behind(document.querySelector('.card, .scroll, .row, .log, .empty'));
  for (let c = 1; c <= 8; c += 1) {
    const mark = document.body.appendChild(document.createElement('i'));
    mark.className = `c${c}`;
    const ratio = contrast(rgba(getComputedStyle(mark).color).slice(0, 3), panel);
    if (ratio < 3) found.push(`${ratio.toFixed(2)} line ${c}`);
    mark.remove();
  }
  return found;
}

// Focusable elements without an accessible name.
function nameless() {
  const reached = 'a, button, input, select, summary, [tabindex="0"], [role="img"]';
  const named = (each) => each.ariaLabel || each.getAttribute('aria-labelledby')
    || each.textContent.trim() || each.closest('label');
  return [...document.querySelectorAll(reached)]
    .filter((each) => each.checkVisibility() && !named(each))
    .map(shortly);
}

// Elements and handlers that this page never creates.
function foreign() {
  const made = 'iframe, object, embed, img, video, audio, base, math, body style, body link, '
    + 'body script, meta[http-equiv], form[action], a[href^="javascript:"], [style*="url"]';
  const handlers = [...document.querySelectorAll('*')]
    .filter((each) => [...each.attributes].some(({ name }) => name.startsWith('on')));
  return [...document.querySelectorAll(made), ...handlers].map(shortly);
}
