mod provider_contract;
