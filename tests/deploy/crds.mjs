// Custom resources, as JSON on standard input, against their operators' schemas: what is wrong goes to standard output.
// To be run in the folder that has node_modules.
import { pathToFileURL } from "node:url";

const HOMES = {
  PrometheusRule: "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule.js",
  ScaledObject: "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject.js",
  ServiceMonitor: "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor.js",
};
const modules = pathToFileURL("node_modules/");

let text = "";
for await (const part of process.stdin) text += part;
for (const manifest of JSON.parse(text)) {
  const { [manifest.kind]: Kind } = await import(new URL(HOMES[manifest.kind], modules));
  try {
    new Kind(manifest).validate();
  } catch (error) {
    console.log(`${manifest.kind}: ${error.message}`);
  }
}
