// The stream of updates. A broken or silent connection is opened again, and the page shows that it is not live.

const SILENCE = 25_000; // The server sends an event at least every ten seconds.
const PAUSES = [500, 1000, 2000, 4000, 8000];

export class Stream {
  constructor(on) {
    this.on = on;
    this.attempt = 0;
    this.lastEvent = null;
    this.connect();
    setInterval(() => this.source && Date.now() - this.since > SILENCE && this.lost(), 5000);
  }

  connect() {
    const source = new EventSource("api/stream");
    this.source = source;
    this.since = Date.now();
    const listen = (name, then) =>
      source.addEventListener(name, (event) => {
        this.since = Date.now();
        this.lastEvent = new Date();
        then?.(JSON.parse(event.data));
      });
    source.onopen = () => {
      const reconnected = this.attempt > 0;
      this.attempt = 0;
      this.on.state("live");
      if (reconnected) this.on.missed();
    };
    source.onerror = () => this.source === source && this.lost();
    listen("overview", this.on.overview);
    listen("happened", this.on.happened);
    listen("missed", this.on.missed);
    listen("alive");
  }

  lost() {
    this.source?.close();
    this.source = null;
    this.on.state("broken", this.lastEvent);
    const pause = PAUSES[Math.min(this.attempt++, PAUSES.length - 1)];
    setTimeout(() => this.connect(), pause);
  }
}
