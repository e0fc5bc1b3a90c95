// Gives the exports of the module their names in the contract, which are no identifiers of the
// language.

const NAMES = {
  throttleDescribe: ['sdk/exports/throttle', 'tidegate:plugin/throttle@0.2.0#describe'],
  throttleCheckConfig: ['sdk/exports/throttle', 'tidegate:plugin/throttle@0.2.0#check-config'],
  throttleDecide: ['sdk/exports/throttle', 'tidegate:plugin/throttle@0.2.0#decide'],
  retryDescribe: ['sdk/exports/retry', 'tidegate:plugin/retry@0.2.0#describe'],
  retryCheckConfig: ['sdk/exports/retry', 'tidegate:plugin/retry@0.2.0#check-config'],
  retryOnFailure: ['sdk/exports/retry', 'tidegate:plugin/retry@0.2.0#on-failure'],
};

export default class Names {
  afterCompile(module) {
    for (const [identifier, [file, name]] of Object.entries(NAMES)) {
      if (module.getExport(identifier)) {
        module.removeExport(identifier);
        module.addFunctionExport(`${file}/${identifier}`, name);
      }
    }
  }
}
