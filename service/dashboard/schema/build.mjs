// Writes the types of the API's views from its description. Routes are left out: pages name them.
import { readFileSync, writeFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";

const [, , source = "../../../docs/openapi.json", target = "../src/api/schema.ts"] = process.argv;
const description = JSON.parse(readFileSync(new URL(source, import.meta.url), "utf8"));
const types = await openapiTS({ ...description, paths: {} });
writeFileSync(new URL(target, import.meta.url), `// Made of docs/openapi.json by schema/build.mjs: change that, not this.\n\n${astToString(types)}`);
