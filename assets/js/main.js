// The page's own part: starts everything, and offers Gradio's buttons what they call.

import * as byhand from "./byhand.js";
import * as changes from "./changes.js";
import * as choices from "./choices.js";
import * as critic from "./critic.js";
import * as curves from "./curves.js";
import * as data from "./data.js";
import * as datasets from "./datasets.js";
import * as debate from "./debate.js";
import * as evaluations from "./evaluations.js";
import * as fields from "./fields.js";
import * as forms from "./forms.js";
import * as lab from "./lab.js";
import * as lineage from "./lineage.js";
import * as newest from "./newest.js";
import * as notice from "./notice.js";
import * as parity from "./parity.js";
import * as plan from "./plan.js";
import * as poll from "./poll.js";
import * as reward from "./reward.js";
import * as rewardEditor from "./reward_editor.js";
import * as preflight from "./preflight.js";
import * as runs from "./runs.js";
import * as sample from "./sample.js";
import * as sharedSize from "./shared_size.js";
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
  formTold: (side, names, values) => void forms.told(side, names, values),
  formGiven: (side, names) => forms.given(side, names),
  reward: { typed: reward.typed, text: reward.text, choices: rewardEditor.choices, chosen: rewardEditor.chosen },
  preflight: (names, values) => void preflight.check(together(names, values)),
  data: { told: data.told, prepare: data.prepare, choices: datasets.choices, used: datasets.usedValues },
  startRun: (names, values) => void runs.startWith(together(names, values)),
};

forms.onChange((side, values) => side === "train" && plan.show(values));
for (const part of [strip, tabs, forms, fields, notice, lab, sample, debate, plan, choices, changes, lineage, curves, critic, evaluations, table, newest, byhand, parity, runs, sharedSize,
  data, datasets, preflight]) part.mount();
reward.mount();
poll.start();
