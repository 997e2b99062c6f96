// Answers from `k3 panel`.
"use strict";
K3.source_of = (() => {
  const PATIENCE_MS = 20000;
  async function asked(path, options) {
    let response, body;
    try {
      response = await fetch(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) });
      body = await response.json();
    } catch {
      throw Object.assign(new Error(K3.t("gone")), { next: K3.t("gone.served"), gone: true });
    }
    if (response.ok && !body.error) return body;
    const error = new Error(body.error ? body.error.what : response.statusText);
    Object.assign(error, { where: body.error && body.error.where, next: body.error && body.error.next });
    throw error;
  }
  return {
    ask: (state) => asked(`api/answer?${state.selection}&context=${state.context}&concurrency=${state.concurrency}&form=${state.form}`),
    check: (text, hardware, parsers) => asked(`api/check?hardware=${encodeURIComponent(hardware)}&parsers=${encodeURIComponent(parsers)}`, { method: "POST", body: text }),
    machine: () => asked("api/machine"),
  };
})();
