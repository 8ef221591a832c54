// Starts the page from this document. The maps' thumbnails stand before this script, the layers after it: the grid is
// drawn while the browser still reads them.

function boot() {
  const root = document.getElementById("page");
  try {
    const app = mount(root, documentSource());
    if (document.readyState === "loading") {
      document.addEventListener("DOMContentLoaded", () => app.update(app.state.current, null));
    }
  } catch (error) {
    if (!(error instanceof DataError)) throw error;
    root.replaceChildren(el("p", {class: "wait", role: "alert"}, error.message));
  }
}

boot();
