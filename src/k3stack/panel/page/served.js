// Answers from `k3 panel`.
"use strict";
K3.source_of = (() => {
  async function asked(path, options) {
    const response = await fetch(path, options);
    const body = await response.json();
    if (response.ok) return body;
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
