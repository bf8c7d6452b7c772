// The stream of what happens. A connection that breaks, or says nothing any more, is made again, and people are told.

const QUIET = 25_000; // The server says something every ten seconds.
const PAUSES = [500, 1000, 2000, 4000, 8000];

export class Live {
  constructor(on) {
    this.on = on;
    this.attempt = 0;
    this.heard = null;
    this.connect();
    setInterval(() => this.source && Date.now() - this.since > QUIET && this.lost(), 5000);
  }

  connect() {
    const source = new EventSource("api/stream");
    this.source = source;
    this.since = Date.now();
    const hear = (name, then) =>
      source.addEventListener(name, (event) => {
        this.since = Date.now();
        this.heard = new Date();
        then?.(JSON.parse(event.data));
      });
    source.onopen = () => {
      const again = this.attempt > 0;
      this.attempt = 0;
      this.on.state("live");
      if (again) this.on.missed();
    };
    source.onerror = () => this.source === source && this.lost();
    hear("overview", this.on.overview);
    hear("happened", this.on.happened);
    hear("missed", this.on.missed);
    hear("alive");
  }

  lost() {
    this.source?.close();
    this.source = null;
    this.on.state("broken", this.heard);
    const pause = PAUSES[Math.min(this.attempt++, PAUSES.length - 1)];
    setTimeout(() => this.connect(), pause);
  }
}
