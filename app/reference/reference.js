// Shows this gateway's openapi.json. Everything that would leave the gateway is off; the page's policy forbids it, too.
const gateway = new URL(".", document.baseURI).href.replace(/\/$/, "");

Scalar.createApiReference("#reference", {
  url: "openapi.json",
  servers: [{ url: gateway, description: "This gateway" }],
  defaultHttpClient: { targetKey: "shell", clientKey: "curl" },
  hiddenClients: {
    ...Object.fromEntries(
      ["c", "clojure", "csharp", "dart", "fsharp", "go", "http", "java", "kotlin", "objc", "ocaml", "php", "powershell", "r",
        "ruby", "rust", "swift"].map((target) => [target, true]),
    ),
    js: ["axios", "jquery", "ofetch", "xhr"],
    node: true,
    python: ["aiohttp", "httpx_async", "python3"],
    shell: ["httpie", "wget"],
  },
  // The order of the document is the order in which one gets to know the gateway.
  defaultOpenFirstTag: true,
  hideModels: true,
  documentDownloadType: "direct",
  persistAuth: false,
  withDefaultFonts: false,
  hideClientButton: true,
  showDeveloperTools: "never",
  telemetry: false,
  agent: { disabled: true },
  mcp: { disabled: true },
});
