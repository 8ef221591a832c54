// Starts the page from this document. The maps' thumbnails stand before this script, the layers after it: the grid is
// drawn while the browser still reads them.

function boot() {
  const root = document.getElementById("page");
  let app = null;
  if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", () => app?.update(app.state.current, null));
  }
  try {
    app = mount(root, documentSource());
  } catch (error) {
    if (!(error instanceof DataError)) throw error;
    root.replaceChildren(el("p", {class: "wait", role: "alert"}, error.message));
  }
}

boot();
