// The colours of the page: those of the system, light or dark. The choice is stored in this browser.

const THEMES = ["system", "light", "dark"];
const KEY = "perennial-theme";

function stored() {
  try {
    return THEMES.find((theme) => theme === localStorage.getItem(KEY)) ?? "system";
  } catch {
    return "system";
  }
}

function store(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
}

/** Applies the stored theme. Each click of the button chooses the next one. */
export function followTheme(button) {
  let theme = stored();
  const show = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    store(theme);
    show();
  });
  show();
}
