/* Search without a server: browsers start no worker from file://, so a hidden frame takes its place. */
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      const start =
        "<script>postMessage = (data) => parent.postMessage(data, '*');" +
        "importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done) => {" +
        "const s = document.createElement('script'); s.src = url; s.onload = s.onerror = done;" +
        "document.body.appendChild(s); })));</script>";
      inside.document.open();
      inside.document.write(`<html><body>${start}<script src="${url}"></script></body></html>`);
      inside.document.close();
      this.hear = (event) => {
        if (event.source !== inside) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      };
      window.addEventListener("message", this.hear);
      this.waiting = [];
      this.frame.addEventListener("load", () => {
        this.ready = true;
        for (const data of this.waiting.splice(0)) this.postMessage(data);
      });
    }
    postMessage(data) {
      const inside = this.frame.contentWindow; // whose own postMessage leads out
      if (this.ready) inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {
      window.removeEventListener("message", this.hear);
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
