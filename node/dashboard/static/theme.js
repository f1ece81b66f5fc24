// Light or dark, before anything is painted: the only script that is not a module, because modules run later.
'use strict';

const THEMES = ['system', 'light', 'dark'];

// If the browser stores nothing for a page, a choice lasts until the page is closed.
const kept = (() => {
  const held = new Map();
  let storage = null;
  try {
    storage = window.localStorage;
  } catch (refused) {
    console.info('cannot store the settings of this page:', refused.name);
  }
  return {
    get: (name) => (storage ? storage.getItem(name) : held.get(name)) ?? null,
    set: (name, value) => (storage ? storage.setItem(name, value) : held.set(name, value)),
  };
})();

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  kept.set('theme', theme);
  window.dispatchEvent(new Event('themechange'));
}

window.page = { kept, THEMES, applyTheme };
applyTheme(THEMES.includes(kept.get('theme')) ? kept.get('theme') : 'system');
window
  .matchMedia('(prefers-color-scheme: dark)')
  .addEventListener('change', () => window.dispatchEvent(new Event('themechange')));
