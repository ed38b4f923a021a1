// The page's own part: starts everything, and offers Gradio's buttons what they call.

import * as changes from "./changes.js";
import * as curves from "./curves.js";
import * as debate from "./debate.js";
import * as fields from "./fields.js";
import * as lab from "./lab.js";
import * as newest from "./newest.js";
import * as notice from "./notice.js";
import * as parity from "./parity.js";
import * as plan from "./plan.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";
import * as sample from "./sample.js";
import * as strip from "./strip.js";
import * as table from "./table.js";
import * as tabs from "./tabs.js";

const together = (names, values) => Object.fromEntries(names.map((name, i) => [name, values[i]]));

// Gradio's events call these; they answer with nothing, so that Gradio changes nothing
window.lab = {
  sample: (names, values) => void sample.ask(together(names, values)),
  cancelSample: () => void sample.cancel(),
  showExamples: (model, task) => void sample.showExamples(model, task),
  presetNote: (name) => void plan.presetNote(name),
  plan: (names, values) => void plan.show(together(names, values)),
  startRun: (names, values) => void runs.startWith(together(names, values)),
};

for (const part of [strip, tabs, fields, notice, lab, sample, debate, plan, changes, curves, table, newest, parity]) part.mount();
poll.start();
