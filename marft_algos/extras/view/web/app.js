// Which view is shown (the address behind #), and asking again while runs train.
import { ask, el, failure } from "./dom.js";
import { Episodes } from "./episodes.js";
import { Runs } from "./runs.js";

const SOON = 2500, LATER = 15000;

class App {
  sources = [];

  async start() {
    this.main = document.getElementById("main");
    this.state = document.getElementById("state");
    if (!(await this.ask())) return;
    this.views = { runs: new Runs(this), episodes: new Episodes(this) };
    addEventListener("hashchange", () => this.show());
    document.addEventListener("visibilitychange", () => document.hidden || this.again());
    await this.show();
    this.again();
  }

  /** Asks for the sources; false where the server has gone. */
  async ask() {
    try {
      this.sources = (await ask("sources")).sources;
      const busy = this.sources.filter((s) => s.indexed < s.bytes);
      const share = busy.reduce((a, s) => a + s.indexed, 0) / busy.reduce((a, s) => a + s.bytes, 0);
      this.state.textContent = busy.length ? `indexing episodes: ${Math.floor(100 * share)} %` : "";
      this.busy = busy.length > 0;
      return true;
    } catch (error) {
      if (!this.views) this.main.replaceChildren(failure(error));
      else this.state.textContent = error.message;
      return false;
    }
  }

  async again() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    if (await this.ask()) await this.views[this.view].update();
    const soon = this.busy ? 100 : this.sources.some((s) => s.writer) ? SOON : LATER;
    this.timer = setTimeout(() => this.again(), soon);
  }

  async show() {
    const [name, query] = location.hash.slice(1).split("?");
    this.view = name in this.views ? name : "runs";
    this.query = new URLSearchParams(query ?? "");
    for (const link of document.querySelectorAll("nav a"))
      link.toggleAttribute("aria-current", link.dataset.view === this.view);
    const view = this.views[this.view];
    if (this.main.firstElementChild !== view.root) { this.main.replaceChildren(view.root); scrollTo(0, 0); }
    await view.open?.(this.query);
    await view.update();
  }
}

new App().start().catch((error) => document.getElementById("main").replaceChildren(el("p", { class: "error" }, error.message)));
